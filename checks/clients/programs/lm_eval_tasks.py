"""lm-eval's local-completions: a task of loglikelihood and one of generate_until, on local data."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from checks import run

url, tokenizer = sys.argv[1:3]
ROWS = [
    {"question": "The first day of the week is", "choices": [" Monday", " seven"], "answer": 0},
    {"question": "One and one is", "choices": [" two", " a cat"], "answer": 0},
    {"question": "Count from one to", "choices": [" twenty", " blue"], "answer": 0},
]
COMMON = """dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
doc_to_text: "{{{{question}}}}"
"""
CHOICES = """task: own_choices
output_type: multiple_choice
doc_to_choice: "{{choices}}"
doc_to_target: answer
metric_list: [{metric: acc}]
"""
GENERATED = """task: own_generated
output_type: generate_until
doc_to_target: "{{choices[answer]}}"
generation_kwargs: {until: ["\\n", "."], max_gen_toks: 24, do_sample: false}
metric_list: [{metric: exact_match}]
"""


def loglikelihood() -> None:
    _evaluate("own_choices", CHOICES, "acc,none")


def generate_until() -> None:
    _evaluate("own_generated", GENERATED, "exact_match,none")


def _evaluate(name: str, task: str, metric: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "rows.jsonl")
        data.write_text("\n".join(json.dumps(row) for row in ROWS))
        Path(folder, "task.yaml").write_text(task + COMMON.format(data=data))
        arguments = f"model=target,base_url={url}/v1/completions,tokenizer={tokenizer}"
        program = Path(sys.executable).with_name("lm_eval")
        done = subprocess.run(
            [
                *(program, "run", "--model", "local-completions", "--tasks", name),
                *("--model_args", arguments, "--include_path", folder, "--output_path", folder),
            ],
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr[-300:]
        results = next(Path(folder).rglob("results*.json"))
        assert 0 <= json.loads(results.read_text())["results"][name][metric] <= 1


run((loglikelihood, generate_until))
