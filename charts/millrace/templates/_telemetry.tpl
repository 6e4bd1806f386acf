{{/* How operator and REST server write their logs, and where their traces go. */}}
{{- define "millrace.telemetry" -}}
- name: MILLRACE_LOG_FORMAT
  value: {{ .Values.logFormat }}
{{- with .Values.tracing.endpoint }}
- name: OTEL_EXPORTER_OTLP_ENDPOINT
  value: {{ . | quote }}
{{- end }}
{{- end }}
