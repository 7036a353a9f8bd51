"""The example model with a chat template that offers tools in Hermes' format."""

import json
import shutil
from pathlib import Path

TEMPLATE = (
    "{%- if tools %}<|im_start|>system\nYou may call tools, described in <tools></tools>.\n<tools>"
    "{% for tool in tools %}\n{{ tool | tojson }}{% endfor %}\n</tools>\nCall one with\n<tool_call>"
    '\n{"name": "its name", "arguments": {}}\n</tool_call><|im_end|>\n{% endif %}'
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['role'] == 'tool' %}<tool_response>\n{{ message['content'] }}\n</tool_response>"
    "{% else %}{{ message['content'] or '' }}{% endif %}"
    "{% for call in message['tool_calls'] or [] %}\n<tool_call>\n"
    '{"name": {{ call["function"]["name"] | tojson }}, '
    '"arguments": {{ call["function"]["arguments"] | tojson }}}\n</tool_call>{% endfor %}'
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_tools_checkpoint(source: Path, folder: Path) -> Path:
    """Copy a checkpoint with the template above; return its folder."""
    target = folder / "model"
    shutil.copytree(source, target)
    file = target / "tokenizer_config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps(config | {"chat_template": TEMPLATE}))
    return target
