{{/* Names are fixed: definitions and cluster roles exist once, so a cluster has one release, and the Lease and the certificate
authority, which the operator makes itself, are found again by the next one. */}}

{{- define "millrace.labels" -}}
app.kubernetes.io/name: millrace
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "millrace.operator.selector" -}}
app.kubernetes.io/name: millrace
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end }}

{{- define "millrace.operator.labels" -}}
{{ include "millrace.labels" . }}
app.kubernetes.io/component: operator
{{- end }}

{{- define "millrace.image" -}}
{{- $tag := .Values.image.tag | default .Chart.AppVersion -}}
{{ .Values.image.repository }}{{ if hasPrefix "sha256:" $tag }}@{{ else }}:{{ end }}{{ $tag }}
{{- end }}

{{/* The Appliance as the operator applies it. JSON, which it reads without a YAML parser. */}}
{{- define "millrace.appliance" -}}
{{- $spec := dict "imagePullPolicy" .Values.image.pullPolicy -}}
{{- with .Values.image.pullSecrets }}{{ $_ := set $spec "imagePullSecrets" . }}{{ end -}}
{{- range $key, $value := omit .Values.appliance "create" -}}
{{- if not (and (or (kindIs "map" $value) (kindIs "slice" $value)) (empty $value)) }}{{ $_ := set $spec $key $value }}{{ end -}}
{{- end -}}
{{- dict "apiVersion" "millrace.dev/v1alpha1" "kind" "Appliance" "metadata" (dict "name" "default") "spec" $spec | toPrettyJson }}
{{- end }}

{{/* Reading, which editors and admins may too. */}}
{{- define "millrace.rules.view" -}}
- apiGroups: [millrace.dev]
  resources: [trainjobs, trainjobs/status, trainjobs/scale, appliances, appliances/status]
  verbs: [get, list, watch]
# What jobs have written is read by way of Millrace, which asks for this right.
- apiGroups: [millrace.dev]
  resources: [trainjobs/logs]
  verbs: [get]
{{- end }}

{{/* Training, which admins may too. Nobody but the operator writes a status. */}}
{{- define "millrace.rules.edit" -}}
- apiGroups: [millrace.dev]
  resources: [trainjobs]
  verbs: [create, update, patch, delete, deletecollection]
- apiGroups: [millrace.dev]
  resources: [trainjobs/scale]
  verbs: [update, patch]
# Checkpoints and whatever else lies in model_dir.
- apiGroups: [millrace.dev]
  resources: [trainjobs/files]
  verbs: [get]
{{- end }}
