"""File formats of model artifacts: readers and writers that check before they use."""
