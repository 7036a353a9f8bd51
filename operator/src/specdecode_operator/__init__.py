"""The operator: turns `SpecDecodeDeployment` resources into engine pods and keeps them so.

One reconcile is four steps: observe (`cluster`, `cache`), decide (`plan`), act (`cluster`), tell
(`status`, `events`). Deciding is pure: `plan`, `status`, `conditions`, `pods`, `events` and
`children` do no I/O and know neither clock, Kopf nor the Kubernetes client. Only `handlers` may
hold Kopf decorators, and only `cluster` may talk to the API server. Children are written by
server-side apply under one field manager and die by owner reference: no finalizers, no
annotations on the resource, and `spec` is the user's alone.
"""
