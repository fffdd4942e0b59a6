"""Reinforcement learning of vision-language models on knowledge-based visual questions, on Hugging Face TRL."""

import os

__version__ = "0.1.0"

# TRL and transformers report usage to the hub from every trainer; nobody asked for that here. Set it to "0" to turn it on again.
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
