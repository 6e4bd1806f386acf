{{/* Names are fixed: definitions and cluster roles exist once, so a cluster has one release. The next release finds the
Lease and the certificate authority, which the operator creates, by their names. */}}

{{- define "millrace.labels" -}}
app.kubernetes.io/name: millrace
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* Labels of the pods of a component: include "millrace.selector" (list $ "operator"). */}}
{{- define "millrace.selector" -}}
app.kubernetes.io/name: millrace
app.kubernetes.io/instance: {{ (first .).Release.Name }}
app.kubernetes.io/component: {{ last . }}
{{- end }}

{{/* Labels of the objects of a component. */}}
{{- define "millrace.component" -}}
{{ include "millrace.labels" (first .) }}
app.kubernetes.io/component: {{ last . }}
{{- end }}

{{/* The spec of a component's pods, except containers and volumes. */}}
{{- define "millrace.pod" -}}
{{- $root := first . -}}
{{- $values := get $root.Values (last .) -}}
serviceAccountName: millrace-{{ last . }}
automountServiceAccountToken: true
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  seccompProfile: {type: RuntimeDefault}
topologySpreadConstraints:
  {{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  - topologyKey: {{ . }}
    maxSkew: 1
    whenUnsatisfiable: ScheduleAnyway
    matchLabelKeys: [pod-template-hash]
    labelSelector:
      matchLabels:
        {{- include "millrace.selector" $ | nindent 8 }}
  {{- end }}
affinity:
  podAntiAffinity:
    {{- /* Only pods of the same revision: during a rollout a new pod may share the node of an old one. */}}
    {{- if gt (int $values.replicas) 1 }}
    requiredDuringSchedulingIgnoredDuringExecution:
      - topologyKey: kubernetes.io/hostname
        matchLabelKeys: [pod-template-hash]
        labelSelector:
          matchLabels:
            {{- include "millrace.selector" $ | nindent 12 }}
    {{- end }}
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels:
              {{- include "millrace.selector" (list $root (eq (last .) "api" | ternary "operator" "api")) | nindent 14 }}
{{- with $root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
tolerations:
  {{- /* As for the pods of jobs: pods of a lost node are replaced after half a minute instead of five. */}}
  {{- range list "not-ready" "unreachable" }}
  - {key: node.kubernetes.io/{{ . }}, operator: Exists, effect: NoExecute, tolerationSeconds: 30}
  {{- end }}
  {{- with $values.tolerations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with $values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end }}

{{/* Security context of all containers of the chart. */}}
{{- define "millrace.container.security" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
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
{{- /* An empty value has the Appliance's default, but an empty list of allowed values allows nothing. */}}
{{- if or (eq $key "priorityClasses") (not (and (or (kindIs "map" $value) (kindIs "slice" $value) (kindIs "invalid" $value)) (empty $value))) }}{{ $_ := set $spec $key $value }}{{ end -}}
{{- end -}}
{{- dict "apiVersion" "millrace.dev/v1alpha1" "kind" "Appliance" "metadata" (dict "name" "default") "spec" $spec | toPrettyJson }}
{{- end }}

{{/* Rules for reading; editors and admins have them, too. */}}
{{- define "millrace.rules.view" -}}
- apiGroups: [millrace.dev]
  resources: [trainjobs, trainjobs/status, trainjobs/scale, appliances, appliances/status]
  verbs: [get, list, watch]
# Files of jobs are read through the REST server, which checks this permission.
- apiGroups: [millrace.dev]
  resources: [trainjobs/logs]
  verbs: [get]
# Claims that a job can mount.
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [get, list, watch]
# For kubectl describe and kubectl logs.
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch]
- apiGroups: [""]
  resources: [pods/log]
  verbs: [get]
- apiGroups: ["", events.k8s.io]
  resources: [events]
  verbs: [get, list, watch]
{{- end }}

{{/* Rules for training; admins have them, too. Only the operator writes a status. */}}
{{- define "millrace.rules.edit" -}}
- apiGroups: [millrace.dev]
  resources: [trainjobs]
  verbs: [create, update, patch, delete, deletecollection]
- apiGroups: [millrace.dev]
  resources: [trainjobs/scale]
  verbs: [update, patch]
# Checkpoints and the other files of a model_dir.
- apiGroups: [millrace.dev]
  resources: [trainjobs/files]
  verbs: [get]
{{- end }}

{{/* Names and addresses in the REST server's own certificate, separated by commas. */}}
{{- define "millrace.api.names" -}}
{{- $own := "millrace-api" -}}
{{- $space := printf "%s.%s" $own .Release.Namespace -}}
{{- $service := printf "%s.svc" $space -}}
{{- $names := list $own $space $service (printf "%s.cluster.local" $service) "localhost" "127.0.0.1" -}}
{{- concat $names .Values.api.tls.names | uniq | sortAlpha | join "," }}
{{- end }}

{{/* Whether the REST server stores uploads: in a bucket, or on its claim, which it has without a database. Not empty if it
     does. */}}
{{- define "millrace.uploads" -}}
{{- if and .Values.api.enabled (or .Values.api.uploads.bucket.url (not .Values.api.database.secretName)) }}yes{{ end -}}
{{- end }}

{{/* The port for uploads, as in operator/cluster/src/address.rs. */}}
{{- define "millrace.uploads.port" -}}
7300
{{- end }}

{{/* The Secret with the REST server's certificate. */}}
{{- define "millrace.api.certificate" -}}
{{ .Values.api.tls.secretName | default "millrace-api-tls" }}
{{- end }}
