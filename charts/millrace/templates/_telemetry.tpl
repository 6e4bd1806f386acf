{{/* The collector of traces as a peer of a NetworkPolicy, in JSON; nothing where the values do not say where it is. */}}
{{- define "millrace.collector" -}}
{{- with .Values.tracing.collector }}
{{- if .cidr }}
{{- dict "ipBlock" (dict "cidr" .cidr) | toJson }}
{{- else if .namespace }}
{{- $namespace := dict "matchLabels" (dict "kubernetes.io/metadata.name" .namespace) }}
{{- dict "namespaceSelector" $namespace "podSelector" (dict "matchLabels" .podLabels) | toJson }}
{{- end }}
{{- end }}
{{- end }}

{{/* How operator and REST server write their logs, and where their traces go. */}}
{{- define "millrace.telemetry" -}}
- name: MILLRACE_LOG_FORMAT
  value: {{ .Values.logFormat }}
{{- with .Values.tracing.endpoint }}
- name: OTEL_EXPORTER_OTLP_ENDPOINT
  value: {{ . | quote }}
{{- if lt (float64 $.Values.tracing.sampleRatio) 1.0 }}
- name: OTEL_TRACES_SAMPLER
  value: parentbased_traceidratio
- name: OTEL_TRACES_SAMPLER_ARG
  value: {{ $.Values.tracing.sampleRatio | quote }}
{{- end }}
{{- end }}
{{- end }}
