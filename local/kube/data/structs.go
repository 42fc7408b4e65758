//go:build ignore

// Prints, as JSON, the Go structs behind the built-in kinds: JSON names, Go types, what is omitted when empty,
// protobuf numbers and strategic-merge keys. build.py joins it with Kubernetes' published OpenAPI.
// Run from a module that requires k8s.io/kubernetes: go run .../structs.go
package main

import (
	"encoding/json"
	"os"
	"reflect"
	"strings"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	apiregistration "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
)

type field struct {
	Name     string `json:"name"`
	Type     string `json:"type"`
	Number   string `json:"number,omitempty"`
	Omit     bool   `json:"omit,omitempty"`
	OmitZero bool   `json:"omitzero,omitempty"`
	Strategy string `json:"strategy,omitempty"`
	Key      string `json:"key,omitempty"`
	Go       string `json:"go"`
}

type structure struct {
	Go     string  `json:"go"`
	Fields []field `json:"fields"`
}

var structs = map[string]*structure{}

// Types that marshal themselves: the walker must not look inside.
var leaves = map[string]string{
	"k8s.io/apimachinery/pkg/apis/meta/v1.Time":                           "time",
	"k8s.io/apimachinery/pkg/apis/meta/v1.MicroTime":                      "microtime",
	"k8s.io/apimachinery/pkg/apis/meta/v1.Duration":                       "duration",
	"k8s.io/apimachinery/pkg/apis/meta/v1.FieldsV1":                       "raw",
	"k8s.io/apimachinery/pkg/api/resource.Quantity":                       "quantity",
	"k8s.io/apimachinery/pkg/util/intstr.IntOrString":                     "intorstring",
	"k8s.io/apimachinery/pkg/runtime.RawExtension":                        "raw",
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1.JSON":       "json",
}

func name(t reflect.Type) string {
	path := strings.Split(t.PkgPath(), "/")
	host := strings.Split(path[0], ".")
	for i, j := 0, len(host)-1; i < j; i, j = i+1, j-1 {
		host[i], host[j] = host[j], host[i]
	}
	return strings.Join(append(host, path[1:]...), ".") + "." + t.Name()
}

func expression(t reflect.Type) string {
	if leaf, ok := leaves[t.PkgPath()+"."+t.Name()]; ok {
		return leaf
	}
	switch t.Kind() {
	case reflect.Pointer:
		return "*" + expression(t.Elem())
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return "bytes"
		}
		return "[]" + expression(t.Elem())
	case reflect.Map:
		return "{}" + expression(t.Elem())
	case reflect.Struct:
		switch t.Name() {
		case "JSONSchemaPropsOrBool", "JSONSchemaPropsOrArray", "JSONSchemaPropsOrStringArray":
			return "json" // one of two shapes: its own UnmarshalJSON decides
		}
		walk(t)
		return name(t)
	default:
		return t.Kind().String()
	}
}

func walk(t reflect.Type) {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return
	}
	if _, done := structs[name(t)]; done {
		return
	}
	out := &structure{Go: t.Name(), Fields: []field{}}
	structs[name(t)] = out
	collect(t, out)
}

func collect(t reflect.Type, out *structure) {
	for i := 0; i < t.NumField(); i++ {
		f := t.Field(i)
		tag, tagged := f.Tag.Lookup("json")
		if tag == "-" || !f.IsExported() {
			continue
		}
		parts := strings.Split(tag, ",")
		if parts[0] == "" && (f.Anonymous || strings.Contains(tag, "inline")) {
			if f.Type == reflect.TypeOf(metav1.TypeMeta{}) {
				out.Fields = append(out.Fields,
					field{Name: "kind", Type: "string", Omit: true, Go: "string"},
					field{Name: "apiVersion", Type: "string", Omit: true, Go: "string"})
				continue
			}
			before := len(out.Fields)
			collect(f.Type, out)
			// An inlined struct is a message of its own on the protobuf wire.
			if number := protobuf(f); number != "" {
				for j := before; j < len(out.Fields); j++ {
					out.Fields[j].Number = number + "." + out.Fields[j].Number
				}
			}
			continue
		}
		if !tagged || parts[0] == "" {
			parts[0] = f.Name
		}
		out.Fields = append(out.Fields, field{
			Name: parts[0], Type: expression(f.Type), Number: protobuf(f), Go: f.Type.String(),
			Omit: strings.Contains(tag, ",omitempty"), OmitZero: strings.Contains(tag, ",omitzero"),
			Strategy: f.Tag.Get("patchStrategy"), Key: f.Tag.Get("patchMergeKey"),
		})
	}
}

func protobuf(f reflect.StructField) string {
	if parts := strings.Split(f.Tag.Get("protobuf"), ","); len(parts) > 1 {
		return parts[1]
	}
	return ""
}

func main() {
	kinds := map[string]string{}
	note := func(gvk schema.GroupVersionKind, t reflect.Type) {
		if gvk.Version == "__internal" {
			return
		}
		walk(t)
		kinds[gvk.Group+"/"+gvk.Version+"/"+gvk.Kind] = name(t)
	}
	for gvk, t := range scheme.Scheme.AllKnownTypes() {
		if strings.HasSuffix(gvk.Kind, "Options") && gvk.Kind != "DeleteOptions" || gvk.Kind == "WatchEvent" {
			continue
		}
		note(gvk, t)
	}
	note(apiextensions.SchemeGroupVersion.WithKind("CustomResourceDefinition"), reflect.TypeOf(apiextensions.CustomResourceDefinition{}))
	note(apiregistration.SchemeGroupVersion.WithKind("APIService"), reflect.TypeOf(apiregistration.APIService{}))
	json.NewEncoder(os.Stdout).Encode(map[string]any{"kinds": kinds, "structs": structs})
}
