{{- define "capacity-broker.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-{{ .Chart.Name }}{{ end -}}
{{- end }}

{{- define "capacity-broker.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}{{ .Values.serviceAccount.name | default (include "capacity-broker.name" .) }}{{ else }}{{ required "serviceAccount.name: with serviceAccount.create=false, name the account that is there" .Values.serviceAccount.name }}{{ end -}}
{{- end }}

{{- define "capacity-broker.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "capacity-broker.labels" -}}
{{ include "capacity-broker.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "capacity-broker.image" -}}
{{ .Values.image.repository }}{{ with .Values.image.tag }}:{{ . }}{{ end }}@{{ .Values.image.digest }}
{{- end }}

{{- /* Fails with every value that is missing: its name, what it is, and an example. */ -}}
{{- define "capacity-broker.required" -}}
{{- $wanted := dict
  "image.repository" "where you pushed what `docker build -f deploy/Dockerfile .` made, such as 123456789012.dkr.ecr.us-east-1.amazonaws.com/capacity-broker"
  "image.digest" "the image's digest, as `docker push` prints it: sha256: and 64 hexadecimal digits"
  "clusterName" "the EKS cluster's name, such as prod"
  "clusterEndpoint" "URL of the API server (aws eks describe-cluster --name NAME --query cluster.endpoint), such as https://0123456789ABCDEF.gr7.us-east-1.eks.amazonaws.com"
  "clusterCABundle" "base64 of the API server's CA (aws eks describe-cluster --name NAME --query cluster.certificateAuthority.data), such as LS0tLS1CRUdJTi..."
  "region" "the cluster's AWS Region, such as us-east-1"
}}
{{- if and .Values.networkPolicy.enabled .Values.webhook.enabled }}
{{- $_ := set $wanted "networkPolicy.apiServerCIDRs" "the CIDRs of the subnets that the control plane is in (aws eks describe-cluster --name NAME --query cluster.resourcesVpcConfig.subnetIds), such as {10.0.0.0/20,10.0.16.0/20}; or set networkPolicy.enabled=false" }}
{{- end }}
{{- $missing := list }}
{{- range $path, $what := $wanted }}
{{- $value := $.Values }}
{{- range splitList "." $path }}{{ $value = get ($value | default dict) . }}{{ end }}
{{- if not $value }}{{ $missing = append $missing (printf "  %s is required: %s" $path $what) }}{{ end }}
{{- end }}
{{- if $missing }}{{ fail (printf "values are missing:\n%s" (join "\n" $missing)) }}{{ end }}
{{- end }}
