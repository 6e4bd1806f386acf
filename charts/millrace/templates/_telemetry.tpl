{{/* The collector of traces as a peer of a NetworkPolicy, in JSON; empty if the values name none. */}}
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

{{/* The ConfigMap with the certificate authority of an https collector; empty for other endpoints. */}}
{{- define "millrace.collector.authority" -}}
{{- if hasPrefix "https://" .Values.tracing.endpoint }}
{{- with .Values.tracing.caConfigMapName }}
{{- . }}
{{- else }}
{{- fail "tracing.endpoint begins with https://, and the image has no certificate authorities: name a ConfigMap whose key ca.crt has the collector's authority in tracing.caConfigMapName" }}
{{- end }}
{{- end }}
{{- end }}

{{/* The volume with this authority, and its mount. */}}
{{- define "millrace.collector.volume" -}}
{{- with include "millrace.collector.authority" . }}
- name: collector-authority
  configMap:
    name: {{ . }}
    items: [{key: ca.crt, path: ca.crt}]
{{- end }}
{{- end }}
{{- define "millrace.collector.mount" -}}
{{- if include "millrace.collector.authority" . }}
- {name: collector-authority, mountPath: /etc/millrace-collector, readOnly: true}
{{- end }}
{{- end }}

{{/* Log format and trace exporter of the operator and the REST server. */}}
{{- define "millrace.telemetry" -}}
- name: MILLRACE_LOG_FORMAT
  value: {{ .Values.logFormat }}
{{- with .Values.tracing.endpoint }}
- name: OTEL_EXPORTER_OTLP_ENDPOINT
  value: {{ . | quote }}
{{- if include "millrace.collector.authority" $ }}
- name: OTEL_EXPORTER_OTLP_CERTIFICATE
  value: /etc/millrace-collector/ca.crt
{{- end }}
{{- if lt (float64 $.Values.tracing.sampleRatio) 1.0 }}
- name: OTEL_TRACES_SAMPLER
  value: parentbased_traceidratio
- name: OTEL_TRACES_SAMPLER_ARG
  value: {{ $.Values.tracing.sampleRatio | quote }}
{{- end }}
{{- end }}
{{- end }}
