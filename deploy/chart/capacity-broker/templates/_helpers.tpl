{{- define "capacity-broker.name" -}}
{{- /* The name of a Service has at most 63 characters. */ -}}
{{- $name := .Release.Name }}
{{- if not (contains .Chart.Name $name) }}{{ $name = printf "%s-%s" $name .Chart.Name }}{{ end }}
{{- $name | trunc 63 | trimSuffix "-" -}}
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

{{- /* Not empty if other machines reach the web page. */ -}}
{{- define "capacity-broker.webReached" -}}
{{- if and .Values.web.enabled (not (or (hasPrefix "127." .Values.web.host) (eq "::1" .Values.web.host))) }}
{{- if not (or .Values.web.tokens .Values.web.userHeader) }}{{ fail (printf "web.host is %s, which other machines reach: set web.userHeader with web.proxies, or web.tokens, or write 127.0.0.1" .Values.web.host) }}{{ end -}}
yes
{{- end }}
{{- end }}

{{- /* Where people open the web page: web.url, else as `kubectl port-forward` serves it. Empty without the page. */ -}}
{{- define "capacity-broker.page" -}}
{{- if .Values.web.enabled }}{{ trimSuffix "/" (.Values.web.url | default "") | default (printf "http://127.0.0.1:%v" .Values.web.port) }}{{ end -}}
{{- end }}

{{- /* Where people open the runbooks: prometheusRule.runbooks, else on the web page. Empty without both. */ -}}
{{- define "capacity-broker.runbooks" -}}
{{- $own := .Values.prometheusRule.runbooks | default "" }}{{- /* docs/runbooks: the default of earlier versions. */ -}}
{{- $page := include "capacity-broker.page" . -}}
{{- trimSuffix "/" ($own | eq "docs/runbooks" | ternary "" $own) | default (empty $page | ternary "" (print $page "/docs/runbooks")) -}}
{{- end }}

{{- /* A dashboard with links to the page and the runbooks as they are here; without a page, with none. */ -}}
{{- define "capacity-broker.dashboard" -}}
{{- $page := include "capacity-broker.page" .root }}
{{- $runbooks := include "capacity-broker.runbooks" .root }}
{{- $text := .text }}
{{- if not $page }}{{ $text = regexReplaceAll "\"links\": \\[[^\\]]*\\]" $text "\"links\": []" }}{{ end }}
{{- $text | replace "http://127.0.0.1:8081/docs/runbooks" $runbooks | replace "http://127.0.0.1:8081" $page }}
{{- end }}

{{- /* The scheduler in pods of its own: another name, so that no selector of the broker's meets it. */ -}}
{{- define "capacity-broker.scheduler" -}}
{{ include "capacity-broker.name" . | trunc 53 | trimSuffix "-" }}-scheduler
{{- end }}

{{- define "capacity-broker.schedulerSelector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}-scheduler
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "capacity-broker.schedulerLabels" -}}
{{ include "capacity-broker.schedulerSelector" . }}
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
{{- if and .Values.web.enabled .Values.web.userHeader (not .Values.web.proxies) }}{{ $missing = append $missing "  web.proxies is required: the CIDRs of the proxies that may set web.userHeader, such as {10.0.1.7/32}" }}{{ end }}
{{- if and .Values.scheduler.separate (not .Values.schedulerNames) }}{{ $missing = append $missing "  schedulerNames is required by scheduler.separate: the names that it serves, such as koord-scheduler" }}{{ end }}
{{- $ports := list (int64 .Values.http.port) }}
{{- if .Values.webhook.enabled }}{{ $ports = append $ports (int64 .Values.webhook.port) }}{{ end }}
{{- if .Values.web.enabled }}{{ $ports = append $ports (int64 .Values.web.port) }}{{ end }}
{{- if ne (len $ports) (len (uniq $ports)) }}{{ fail (printf "http.port, webhook.port and web.port are %s: write another port for each" (join ", " $ports)) }}{{ end }}
{{- if $missing }}{{ fail (printf "values are missing:\n%s" (join "\n" $missing)) }}{{ end }}
{{- end }}
