"""LoRA adapters as peft saves them: adapter_config.json and adapter_model.safetensors."""
