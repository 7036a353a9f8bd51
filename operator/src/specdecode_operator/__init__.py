"""The operator: reconciles `SpecDecodeDeployment` custom resources to engine pods.

One reconcile is four steps: observe (`cluster`, `cache`), decide (`plan`), act (`cluster`), report
(`status`, `events`). Deciding is pure: `plan`, `status`, `conditions`, `pods`, `events` and
`children` do no I/O and use no clock, no Kopf and no Kubernetes client. Only `handlers` may
hold Kopf decorators, and only `cluster` may talk to the API server. Owned objects are written by
server-side apply under one field manager and removed through owner references: there are no
finalizers and no annotations on the custom resource, and the operator never writes its `spec`.
"""
