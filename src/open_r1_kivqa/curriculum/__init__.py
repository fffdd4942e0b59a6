"""Which sample comes next and at which level: difficulty, estimated from rewards and spread over a graph of samples."""
