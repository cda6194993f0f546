// Command manifests checks the Kubernetes manifests of folders without a cluster. It
// builds each folder with kustomize and checks every object with kubeconform,
// strictly: an unknown field is an error. The schemas come from the OpenAPI document
// of Kubernetes, which is part of its Go module.
//
//	go run . FOLDER...
//
// The exit status is 1 if an object is invalid or a folder cannot be built.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/yannh/kubeconform/pkg/resource"
	"github.com/yannh/kubeconform/pkg/validator"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

const (
	// kubernetes is the module with the OpenAPI document. Manifests may use the fields
	// of this version of Kubernetes.
	kubernetes = "k8s.io/kubernetes@v1.34.4"
	// kubernetesSum is the module's checksum in the form of go.sum. The module is not in go.mod,
	// because other modules cannot require it.
	kubernetesSum = "h1:Yy6R4QB8C9kJPp25GFqEvX5XQwY5qzKeqD0Xx6oAcmk="
)

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "manifests:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, folders []string) error {
	if len(folders) == 0 {
		return errors.New("usage: manifests FOLDER...")
	}
	schemas, err := os.MkdirTemp("", "manifests-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(schemas)
	if err := writeSchemas(ctx, schemas); err != nil {
		return err
	}
	var failed error
	for _, folder := range folders {
		objects, err := render(folder)
		if err == nil {
			err = validate(schemas, objects)
		}
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s: %w", folder, err))
			continue
		}
		fmt.Printf("%s: %d objects are valid\n", folder, len(objects))
	}
	return failed
}

// render returns the objects that kustomize builds from a folder, each as YAML.
func render(folder string) ([][]byte, error) {
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), folder)
	if err != nil {
		return nil, err
	}
	var objects [][]byte
	for _, object := range built.Resources() {
		text, err := object.AsYAML()
		if err != nil {
			return nil, err
		}
		objects = append(objects, text)
	}
	if len(objects) == 0 {
		return nil, errors.New("no objects")
	}
	return objects, nil
}

// validate checks objects against the schemas in a folder. An object of a kind
// without a schema is invalid.
func validate(schemas string, objects [][]byte) error {
	v, err := validator.New([]string{filepath.Join(schemas, "{{.ResourceKind}}{{.KindSuffix}}.json")}, validator.Opts{Strict: true})
	if err != nil {
		return err
	}
	var failed error
	for _, object := range objects {
		result := v.ValidateResource(resource.Resource{Bytes: object})
		if result.Status == validator.Valid {
			continue
		}
		name := "an object"
		if signature, err := result.Resource.Signature(); err == nil {
			name = signature.Kind + " " + signature.Name
		}
		if len(result.ValidationErrors) == 0 {
			failed = errors.Join(failed, fmt.Errorf("%s: %w", name, result.Err))
		}
		for _, found := range result.ValidationErrors {
			failed = errors.Join(failed, fmt.Errorf("%s: %s: %s", name, found.Path, found.Msg))
		}
	}
	return failed
}

// document returns the OpenAPI document of Kubernetes. It downloads the module unless
// the module cache has it.
func document(ctx context.Context) ([]byte, error) {
	download := exec.CommandContext(ctx, "go", "mod", "download", "-json", kubernetes)
	out, err := download.Output()
	var module struct{ Dir, Sum, Error string }
	if parseErr := json.Unmarshal(out, &module); parseErr != nil || module.Error != "" || err != nil {
		return nil, fmt.Errorf("downloading %s: %w", kubernetes, errors.Join(err, parseErr, errors.New(module.Error)))
	}
	if module.Sum != kubernetesSum {
		return nil, fmt.Errorf("%s has the checksum %s, want %s", kubernetes, module.Sum, kubernetesSum)
	}
	return os.ReadFile(filepath.Join(module.Dir, "api", "openapi-spec", "swagger.json"))
}

// writeSchemas writes one file for each kind, with the name that kubeconform looks
// for, and one with all definitions.
func writeSchemas(ctx context.Context, folder string) error {
	text, err := document(ctx)
	if err != nil {
		return err
	}
	var openAPI struct {
		Definitions map[string]map[string]any `json:"definitions"`
	}
	if err := json.Unmarshal(text, &openAPI); err != nil {
		return fmt.Errorf("the OpenAPI document: %w", err)
	}
	for name, definition := range openAPI.Definitions {
		kinds, _ := definition["x-kubernetes-group-version-kind"].([]any)
		if len(kinds) == 1 { // skip objects with several kinds, such as options of requests
			if err := writeKind(folder, name, kinds[0].(map[string]any)); err != nil {
				return err
			}
		}
		tighten(name, definition)
	}
	return writeJSON(filepath.Join(folder, "definitions.json"), openAPI)
}

// writeKind writes the schema of a kind. The API does not accept an object without
// apiVersion and kind, but their definition does not require them.
func writeKind(folder, definition string, of map[string]any) error {
	group, version, kind := of["group"].(string), of["version"].(string), of["kind"].(string)
	words := []string{kind}
	if group != "" {
		prefix, _, _ := strings.Cut(group, ".")
		words = append(words, prefix)
	}
	name := strings.ToLower(strings.Join(append(words, version), "-")) + ".json"
	return writeJSON(filepath.Join(folder, name), map[string]any{"$ref": "definitions.json#/definitions/" + definition})
}

// tighten makes a definition refuse unknown fields, and null. Definitions without
// properties, such as quantities, accept any value unless they say otherwise.
func tighten(name string, definition map[string]any) {
	switch {
	case strings.HasSuffix(name, ".IntOrString"):
		delete(definition, "type")
		definition["oneOf"] = []any{map[string]any{"type": "string"}, map[string]any{"type": "integer"}}
	case strings.HasSuffix(name, ".Quantity"):
		delete(definition, "type")
		definition["oneOf"] = []any{map[string]any{"type": "string"}, map[string]any{"type": "number"}}
	}
	if _, ok := definition["properties"]; ok {
		definition["additionalProperties"] = false
	}
	delete(definition, "format") // IntOrString has a format that validators do not know
}

func writeJSON(name string, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return os.WriteFile(name, text, 0o600)
}
