"""How the tiny models are made: the text, the tokenizer, the target, the drafts."""
