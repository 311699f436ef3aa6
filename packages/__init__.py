"""T3: which exact model on which device, or why not; one folder for each exact artifact."""

KNOWN = ("smollm2_135m", "qwen3_8_27b")
