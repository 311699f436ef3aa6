"""T1: sessions, schedules, buffers, state, sampler and tokenizer; knows no model name and no C."""
