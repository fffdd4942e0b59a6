"""TRL's trainers with the small overrides that knowledge-based visual questions need."""
