{{- define "specdecode.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 53 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- printf "%s-operator" .Release.Name | trunc 53 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s-operator" .Release.Name $name | trunc 53 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Labels by which the Service and the Deployment find the pod: they never change. */}}
{{- define "specdecode.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 53 | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: operator
{{- end -}}

{{- define "specdecode.labels" -}}
{{ include "specdecode.selector" . }}
app.kubernetes.io/part-of: specdecode
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "specdecode.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "specdecode.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* Reference of an image: takes the context as `root` and the values as `image`. */}}
{{- define "specdecode.imageReference" -}}
{{- $registry := (.root.Values.global).imageRegistry | default .image.registry -}}
{{- $name := list $registry .image.repository | compact | join "/" -}}
{{- if .image.digest -}}
{{- printf "%s@%s" $name .image.digest -}}
{{- else -}}
{{- printf "%s:%s" $name (default .root.Chart.AppVersion .image.tag) -}}
{{- end -}}
{{- end -}}

{{- define "specdecode.image" -}}
{{- include "specdecode.imageReference" (dict "root" . "image" .Values.image) -}}
{{- end -}}

{{- define "specdecode.engineImage" -}}
{{- include "specdecode.imageReference" (dict "root" . "image" .Values.engine.image) -}}
{{- end -}}

{{- define "specdecode.routerImage" -}}
{{- include "specdecode.imageReference" (dict "root" . "image" .Values.router.image) -}}
{{- end -}}

{{/* Labels of every router's pod, as names.py has them. */}}
{{- define "specdecode.routerSelector" -}}
app.kubernetes.io/part-of: specdecode
app.kubernetes.io/component: router
{{- end -}}

{{/* Labels of every engine's pod, as names.py has them. */}}
{{- define "specdecode.engineSelector" -}}
app.kubernetes.io/part-of: specdecode
app.kubernetes.io/component: engine
{{- end -}}

{{- define "specdecode.dnsEgress" -}}
# 5353: OpenShift's DNS pods. A policy counts the port of the pod, not that of its Service.
- ports:
    - {port: 53, protocol: UDP}
    - {port: 53, protocol: TCP}
    - {port: 5353, protocol: UDP}
    - {port: 5353, protocol: TCP}
{{- end -}}

{{/* Exactly the verbs that the operator declares in kinds.py; a test compares the two. */}}
{{- define "specdecode.rules" -}}
- apiGroups: [specdecode.io]
  resources: [specdecodedeployments]
  verbs: [create, list, watch]
- apiGroups: [specdecode.io]
  resources: [specdecodedeployments/status, specdecodetrials/status]
  verbs: [patch]
- apiGroups: [specdecode.io]
  resources: [specdecodetrials]
  verbs: [create, delete, list, patch, watch]
- apiGroups: [""]
  resources: [configmaps, serviceaccounts, services]
  verbs: [create, delete, get, list, patch, watch]
- apiGroups: [apps]
  resources: [controllerrevisions]
  verbs: [create, delete, list, patch, watch]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [create, delete, get, list, patch, watch]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [create, delete, get, list, patch, watch]
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch]
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [list, watch]
- apiGroups: [""]
  resources: [events]
  verbs: [create, list]
{{- if .Values.router.enabled }}
# The account of routers follows EndpointSlices, which the operator may do too: it can grant no more.
- apiGroups: [rbac.authorization.k8s.io]
  resources: [rolebindings, roles]
  verbs: [create, delete, get, list, patch, watch]
# Who may reach engines of runtime VLLM, which need routers.
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [create, delete, get, list, patch, watch]
# The token between routers and engines, and no other Secret.
- apiGroups: [""]
  resources: [secrets]
  resourceNames: [specdecode-router-token]
  verbs: [create, get, patch]
{{- end }}
{{- if .Values.inferencePool.enabled }}
- apiGroups: [inference.networking.k8s.io]
  resources: [inferencepools]
  verbs: [create, delete, get, list, patch]
{{- end }}
{{- end -}}
