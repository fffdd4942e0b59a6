"""Cold-start data by modality bridging: `kivqa bridge` (docs/bridging.md)."""
