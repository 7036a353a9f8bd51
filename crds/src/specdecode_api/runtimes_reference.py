"""docs/runtimes.md: what a resource is with another runtime, from the rows of the contract."""

from specdecode_api.v1alpha1.runtimes import (
    OPERATORS_ARGUMENTS,
    OWNED_ARGUMENTS,
    VLLM_FIELDS,
    VLLM_VERSIONS,
    RuntimeField,
)

_INTRODUCTION = f"""\
# Runtimes

`engine.runtime` chooses the engine that serves a model: `Specdecode`, this project's, or `VLLM`. A model that needs several GPUs with pipeline stages, or a form that this project's engine lacks, can run on vLLM under the same resource: with its validation, speculation tables, routers, keys, drains and drift repair.

```yaml
spec:
  model: {{uri: "hf://meta-llama/Llama-3.1-8B-Instruct"}}
  engine: {{runtime: VLLM}}
  speculation: {{algorithm: EAGLE3, draft: {{uri: "hf://yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"}}}}
  router: {{}}
  rollout: {{mode: Manual}}
```

No pod of it has run: command lines follow the flags of vLLM 0.33.0, metrics those that vLLM 0.32.0 exported on a CPU, and the rest is tested against a real API server without pods. [examples/vllm.yaml](../examples/vllm.yaml) is a whole resource.

## What differs

| | Specdecode | VLLM |
|---|---|---|
| versions | this release | {" and ".join(VLLM_VERSIONS)}; another one is reported in the condition Degraded (`RuntimeVersionUnsupported`) |
| image | the chart's `engine.image` | the chart's `vllm.image`, for GPUs; on a CPU `engine.image` is required |
| GPUs of a pod | `parallelism.tensor` | tensor × pipeline × data |
| several nodes | no | no: `parallelism.nodes` is 1 |
| draft steps | chosen by a policy, or a table | a fixed table, or `numSteps` |
| recommended tables, trials, guarded edits, exchange of tables and drafts in running pods | yes | no: refused with the remedy, and a SpecDecodeTrial ends with `RuntimeWithoutTrials` |
| routers | optional | required: vLLM's port can change the engine, and leaves `/tokenize` without a key |
| API keys | checked by engines | checked by the routers, which pass none on |
| streams of a lost engine | continued on another one | end with the error `engine_lost` |
| downloads of `hf://` | an init container, with progress and pinned commits | vLLM, within `lifecycle.startupTimeout`; name a commit in the URI, or replicas may differ |
| metrics in the status | all | `status.measured`: tokens per second and accept length |
| dashboards, alerts, `kubectl specdecode top`, scrapes by the chart's PodMonitor | yes | no |

A change of `engine.runtime` replaces the pods, also with `editPolicy: Guarded`, and ends a trial. Routers use the engines of the earlier runtime until one of the new runtime is ready, and those of the new runtime alone from then on. Their own pods are replaced then: streams of the earlier engines are drained, and requests that find no engine are held for `router.timeout` at most.

A NetworkPolicy of the operator, `NAME-vllm`, lets only the resource's routers, the operator and the peers of the chart's `vllm.metricsFrom` reach vLLM's port. It selects pods with vLLM alone, and stays until the last one has ended. A peer of `vllm.metricsFrom` reaches the whole port, which serves the API without keys; by default there is none. The policy needs a network plugin that enforces policies; without one, whoever reaches a pod can change its engine. `networkPolicy.engines.enabled` of the chart restricts the egress of these pods as well.

When a pod ends, it waits `lifecycle.preStop` and then until no request runs or waits, for `lifecycle.drainTimeout` at most; a pod that never served ends at once. `--shutdown-timeout` is always set, because vLLM leaves running requests without an answer otherwise.

## From a command line

```console
$ kubectl specdecode convert 'vllm serve meta-llama/Llama-3.1-8B-Instruct -tp 2 --max-model-len 16384' > llama.yaml
$ kubectl specdecode convert --file start.sh --runtime Specdecode --name chat > chat.yaml
```

`kubectl specdecode convert` and `specdecode-operator convert` write a resource for a command line of `vllm serve` or `python -m vllm.entrypoints.openai.api_server`; the arguments of a container alone are those of `vllm serve`. They run nothing and need no cluster. `-` reads standard input. `--runtime Specdecode` writes a resource for this project's engine.

- Quotes, continued lines, comments, variables before the program and vLLM's `--config FILE` are understood. What a shell would replace or run (`$NAME`, `;`, `|`, `*`), templates and unknown flags are refused; all errors of the flags are reported together.
- Flags with a field set it: sizes of parallelism also set the limit `nvidia.com/gpu`, `--speculative-config` becomes `speculation` with its table. With VLLM all others go to `engine.extraArgs`, unless the operator sets them. With Specdecode they are listed with what [the engine](from-vllm-and-sglang.md#flags) has instead, and a few settings without a field go to `engine.config`.
- Standard error lists what the resource does not contain, one line with flag, value and reason each, and what the operator sets that the command line left to vLLM.
- A model is `hf://ORG/NAME`. For a folder, `--model-uri` and `--draft-uri` name where pods find it, such as `pvc://CLAIM/FOLDER`. Clients use the same model name as before. `--image` names the image of the engine, which suffix trees need on vLLM.
- API keys, tokens of the Hub and variables that may be keys become references to Secrets. The commands that create these read the values from the environment; no value is printed. A flag that may contain a key is listed as dropped.

Command lines of SGLang and objects of KServe are not converted.

## Fields

Fields without a line mean the same with both. `engine.extraArgs` reaches everything else.

"""  # noqa: E501

_ARGUMENTS = """\

## Arguments

`engine.extraArgs` come before the arguments of the operator. These are refused:

"""


def runtimes_reference(notice: str) -> str:
    """Write the page; `notice` names what generated it."""
    fields = "\n".join(map(_line, VLLM_FIELDS))
    arguments = "\n".join(
        f"| {', '.join(f'`{flag}`' for flag in flags)} | `{field}` |"
        for field, flags in OWNED_ARGUMENTS.items()
    )
    own = ", ".join(f"`{flag}`" for flag in OPERATORS_ARGUMENTS)
    return (
        f"<!-- {notice} -->\n\n{_INTRODUCTION}| Field | With VLLM |\n|---|---|\n{fields}\n"
        f"{_ARGUMENTS}| Arguments | Use |\n|---|---|\n{arguments}\n| {own} | – |\n"
    )


def _line(row: RuntimeField) -> str:
    path = row.path.replace(".[]", "[]")
    if not row.is_refused:
        return f"| `{path}` | {row.becomes} |"
    accepted = ", ".join(f"`{each}`" for each in row.accepts)
    others = f"values but {accepted} are refused" if accepted else "refused"
    becomes = f"{row.becomes}; " if row.becomes else ""
    return f"| `{path}` | {becomes}{others}: {row.reason}; {row.remedy} |"
