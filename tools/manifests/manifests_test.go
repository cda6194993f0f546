package main

import (
	"bytes"
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"
)

// root is the root of the repository.
const root = "../.."

// folders are the folders of the repository that kustomize builds.
var folders = []string{root + "/deploy/kubernetes/base", root + "/deploy/kubernetes/example"}

// object has the fields of an object that our rules check.
type object struct {
	Kind     string   `json:"kind"`
	Metadata metadata `json:"metadata"`
	Spec     struct {
		Replicas       int            `json:"replicas"`
		Selector       map[string]any `json:"selector"`
		PodSelector    map[string]any `json:"podSelector"`
		MinAvailable   any            `json:"minAvailable"`
		MaxUnavailable any            `json:"maxUnavailable"`
		Template       struct {
			Metadata metadata `json:"metadata"`
			Spec     pod      `json:"spec"`
		} `json:"template"`
		PolicyTypes []string `json:"policyTypes"`
		Ingress     []struct {
			From []any `json:"from"`
		} `json:"ingress"`
		Egress []struct {
			To []struct {
				PodSelector struct {
					MatchLabels map[string]string `json:"matchLabels"`
				} `json:"podSelector"`
			} `json:"to"`
		} `json:"egress"`
	} `json:"spec"`
}

type metadata struct {
	Name   string            `json:"name"`
	Labels map[string]string `json:"labels"`
}

type pod struct {
	AutomountServiceAccountToken  *bool       `json:"automountServiceAccountToken"`
	EnableServiceLinks            *bool       `json:"enableServiceLinks"`
	TerminationGracePeriodSeconds int         `json:"terminationGracePeriodSeconds"`
	HostNetwork                   bool        `json:"hostNetwork"`
	HostPID                       bool        `json:"hostPID"`
	HostIPC                       bool        `json:"hostIPC"`
	Volumes                       []any       `json:"volumes"`
	TopologySpreadConstraints     []any       `json:"topologySpreadConstraints"`
	InitContainers                []container `json:"initContainers"`
	Containers                    []container `json:"containers"`
	SecurityContext               struct {
		RunAsNonRoot   bool `json:"runAsNonRoot"`
		RunAsUser      int  `json:"runAsUser"`
		SeccompProfile struct {
			Type string `json:"type"`
		} `json:"seccompProfile"`
	} `json:"securityContext"`
}

type container struct {
	Name  string   `json:"name"`
	Image string   `json:"image"`
	Args  []string `json:"args"`
	Env   []struct {
		Name      string `json:"name"`
		Value     string `json:"value"`
		ValueFrom *struct {
			SecretKeyRef *struct {
				Name     string `json:"name"`
				Key      string `json:"key"`
				Optional bool   `json:"optional"`
			} `json:"secretKeyRef"`
		} `json:"valueFrom"`
	} `json:"env"`
	EnvFrom []any `json:"envFrom"`
	Ports   []struct {
		Name          string `json:"name"`
		ContainerPort int    `json:"containerPort"`
	} `json:"ports"`
	StartupProbe   *probe `json:"startupProbe"`
	LivenessProbe  *probe `json:"livenessProbe"`
	ReadinessProbe *probe `json:"readinessProbe"`
	Lifecycle      struct {
		PreStop struct {
			Sleep struct {
				Seconds int `json:"seconds"`
			} `json:"sleep"`
		} `json:"preStop"`
	} `json:"lifecycle"`
	Resources struct {
		Requests map[string]any `json:"requests"`
		Limits   map[string]any `json:"limits"`
	} `json:"resources"`
	SecurityContext struct {
		Privileged               bool  `json:"privileged"`
		AllowPrivilegeEscalation *bool `json:"allowPrivilegeEscalation"`
		ReadOnlyRootFilesystem   bool  `json:"readOnlyRootFilesystem"`
		Capabilities             struct {
			Add  []string `json:"add"`
			Drop []string `json:"drop"`
		} `json:"capabilities"`
	} `json:"securityContext"`
}

type probe struct {
	HTTPGet *struct {
		Path string `json:"path"`
		Port any    `json:"port"`
	} `json:"httpGet"`
	TimeoutSeconds int `json:"timeoutSeconds"`
}

// env returns the value of a variable.
func (c container) env(name string) string {
	for _, variable := range c.Env {
		if variable.Name == name {
			return variable.Value
		}
	}
	return ""
}

// rules checks objects against facts from the repository's source.
type rules struct {
	flags  map[string]bool // names of the service's variables
	routes map[string]bool // paths that answer GET
	faults []string
}

func (r *rules) fault(where, format string, args ...any) {
	r.faults = append(r.faults, where+": "+fmt.Sprintf(format, args...))
}

// label and name are the label of the pods.
const label, name = "app.kubernetes.io/name", "holdfast"

// shutdown is how long an instance takes to stop after its drain delay, with a margin
// (docs/operations.md).
const shutdown = 20 * time.Second

var (
	// pinned matches an image with a version of three numbers, or a digest.
	pinned = regexp.MustCompile(`^[a-z0-9./-]+(:v?\d+\.\d+\.\d+[a-z0-9.-]*|(:[a-z0-9.-]+)?@sha256:[0-9a-f]{64})$`)
	// secret matches the name of a variable whose value is a secret. URLs of stores
	// contain passwords.
	secret = regexp.MustCompile(`^HOLDFAST_(DB|REDIS|ZOOKEEPER|ETCD|REDLOCK)$|TOKEN|SECRET|PASSWORD`)
)

// judge returns the violations of our rules by the objects.
func (r *rules) judge(objects []object) []string {
	r.faults = nil
	kinds := make(map[string]int)
	for _, o := range objects {
		kinds[o.Kind]++
		r.judgeSelector(o)
		switch o.Kind {
		case "Deployment":
			r.judgeInstances(o)
		case "PodDisruptionBudget":
			if o.Spec.MaxUnavailable != float64(1) || o.Spec.MinAvailable != nil {
				r.fault(o.Kind, "maxUnavailable is not 1")
			}
		case "NetworkPolicy":
			r.judgeNetwork(o)
		case "Secret":
			r.fault(o.Kind, "secrets do not belong into the repository")
		}
	}
	for _, kind := range []string{"Deployment", "Service", "PodDisruptionBudget", "NetworkPolicy"} {
		if kinds[kind] != 1 {
			r.fault(kind, "there are %d", kinds[kind])
		}
	}
	return r.faults
}

// judgeSelector checks that an object selects only the instances.
func (r *rules) judgeSelector(o object) {
	ours := map[string]any{label: name}
	match := map[string]any{"matchLabels": ours}
	selector, want := o.Spec.Selector, match
	switch o.Kind {
	case "Service":
		want = ours
	case "NetworkPolicy":
		selector = o.Spec.PodSelector
	case "Deployment":
		if o.Spec.Template.Metadata.Labels[label] != name {
			r.fault(o.Kind, "the pods have the labels %v", o.Spec.Template.Metadata.Labels)
		}
	case "PodDisruptionBudget":
	default:
		return
	}
	if !reflect.DeepEqual(selector, want) {
		r.fault(o.Kind, "the selector is %v", selector)
	}
}

func (r *rules) judgeNetwork(o object) {
	if !slices.Equal(o.Spec.PolicyTypes, []string{"Ingress", "Egress"}) {
		r.fault(o.Kind, "the types are %v", o.Spec.PolicyTypes)
	}
	for _, rule := range o.Spec.Ingress {
		if len(rule.From) == 0 {
			r.fault(o.Kind, "everything may enter")
		}
	}
	for _, rule := range o.Spec.Egress {
		if len(rule.To) == 0 {
			r.fault(o.Kind, "an instance may reach everything")
		}
		for _, peer := range rule.To {
			if peer.PodSelector.MatchLabels[label] == name {
				r.fault(o.Kind, "the instances may reach themselves instead of others")
			}
		}
	}
}

func (r *rules) judgeInstances(o object) {
	p := o.Spec.Template.Spec
	if o.Spec.Replicas < 2 {
		r.fault(o.Kind, "%d replicas", o.Spec.Replicas)
	}
	if p.AutomountServiceAccountToken == nil || *p.AutomountServiceAccountToken {
		r.fault(o.Kind, "has a service account token")
	}
	if p.EnableServiceLinks == nil || *p.EnableServiceLinks {
		r.fault(o.Kind, "service links set variables that are taken for flags")
	}
	if p.HostNetwork || p.HostPID || p.HostIPC || len(p.Volumes) > 0 {
		r.fault(o.Kind, "shares something with its host")
	}
	if s := p.SecurityContext; !s.RunAsNonRoot || s.RunAsUser != 65532 || s.SeccompProfile.Type != "RuntimeDefault" {
		r.fault(o.Kind, "is not hardened: %+v", s)
	}
	if len(p.TopologySpreadConstraints) == 0 {
		r.fault(o.Kind, "pods may share a node")
	}
	for _, c := range slices.Concat(p.InitContainers, p.Containers) {
		r.judgeContainer(c)
	}
	for _, c := range p.Containers {
		r.judgeServing(c, time.Duration(p.TerminationGracePeriodSeconds)*time.Second)
	}
	if len(p.InitContainers) != 1 || !slices.Equal(p.InitContainers[0].Args, []string{"migrate", "up"}) || p.InitContainers[0].Image != p.Containers[0].Image {
		r.fault(o.Kind, "the same image does not migrate first")
	}
}

// judgeContainer checks the rules that also apply to the migration.
func (r *rules) judgeContainer(c container) {
	if !pinned.MatchString(c.Image) {
		r.fault(c.Name, "image %q is not pinned", c.Image)
	}
	s := c.SecurityContext
	if s.Privileged || s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation || !s.ReadOnlyRootFilesystem ||
		!slices.Equal(s.Capabilities.Drop, []string{"ALL"}) || len(s.Capabilities.Add) > 0 {
		r.fault(c.Name, "is not hardened: %+v", s)
	}
	if c.Resources.Requests["cpu"] == nil || c.Resources.Requests["memory"] == nil || c.Resources.Limits["memory"] == nil {
		r.fault(c.Name, "resources are not set")
	}
	if len(c.EnvFrom) > 0 {
		r.fault(c.Name, "takes all variables of a secret, known or not")
	}
	for _, v := range c.Env {
		if strings.HasPrefix(v.Name, "HOLDFAST_") && !r.flags[v.Name] {
			r.fault(c.Name, "%s is not a flag of the service", v.Name)
		}
		reference := v.ValueFrom != nil && v.ValueFrom.SecretKeyRef != nil && v.ValueFrom.SecretKeyRef.Name != "" &&
			v.ValueFrom.SecretKeyRef.Key != "" && !v.ValueFrom.SecretKeyRef.Optional && v.Value == ""
		if secret.MatchString(v.Name) && !reference {
			r.fault(c.Name, "%s is not a reference to a secret", v.Name)
		}
	}
}

// judgeServing checks a container that serves requests.
func (r *rules) judgeServing(c container, grace time.Duration) {
	for _, wanted := range []struct {
		path string
		*probe
	}{{"/healthz", c.StartupProbe}, {"/healthz", c.LivenessProbe}, {"/readyz", c.ReadinessProbe}} {
		path, p := wanted.path, wanted.probe
		switch {
		case p == nil || p.HTTPGet == nil:
			r.fault(c.Name, "a probe is missing")
		case p.HTTPGet.Path != path || !r.routes[path]:
			r.fault(c.Name, "%s is not probed", path)
		case p.HTTPGet.Port != "http":
			r.fault(c.Name, "%s is probed at port %v", path, p.HTTPGet.Port)
		case p.TimeoutSeconds < 3: // because an answer may take 2 s
			r.fault(c.Name, "the timeout of %s is %d s", path, p.TimeoutSeconds)
		}
	}
	listens := map[string]string{"http": "HOLDFAST_LISTEN", "ops": "HOLDFAST_OPS_LISTEN"}
	for _, port := range c.Ports {
		if !strings.HasSuffix(c.env(listens[port.Name]), fmt.Sprintf(":%d", port.ContainerPort)) {
			r.fault(c.Name, "nothing listens on port %s", port.Name)
		}
	}
	if c.env("HOLDFAST_MIGRATE") != "off" {
		r.fault(c.Name, "instances migrate")
	}
	drain, err := time.ParseDuration(cmp.Or(c.env("HOLDFAST_DRAIN_DELAY"), "0s"))
	sleep := time.Duration(c.Lifecycle.PreStop.Sleep.Seconds) * time.Second
	if err != nil || drain <= 0 || sleep <= 0 {
		r.fault(c.Name, "does not drain: %v, preStop %v, %v", drain, sleep, err)
	}
	if grace < sleep+drain+shutdown {
		r.fault(c.Name, "is killed after %v, but may need %v", grace, sleep+drain+shutdown)
	}
}

// flagRow matches the row of a flag in docs/configuration.md. The page is generated from the
// service's flags.
var flagRow = regexp.MustCompile("(?m)^\\| `--([a-z-]+)` \\|")

// newRules reads the service's flags and its source.
func newRules(t *testing.T) *rules {
	t.Helper()
	r := &rules{flags: make(map[string]bool), routes: make(map[string]bool)}
	page, err := os.ReadFile(filepath.Join(root, "docs/configuration.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range flagRow.FindAllSubmatch(page, -1) {
		r.flags["HOLDFAST_"+strings.ToUpper(strings.ReplaceAll(string(row[1]), "-", "_"))] = true
	}
	for _, call := range calls(t, "internal/httpapi") {
		if f, ok := call.Fun.(*ast.SelectorExpr); ok && f.Sel.Name == "GET" && len(call.Args) > 1 {
			r.routes[literal(call.Args[0])] = true
		}
	}
	if !r.flags["HOLDFAST_LISTEN"] || !r.flags["HOLDFAST_LOCK"] || r.flags["HOLDFAST_NOTHING"] || !r.routes["/readyz"] {
		t.Fatalf("the source was not understood: %v, %v", r.flags, r.routes)
	}
	return r
}

// calls returns the calls in the source of a package, without its tests.
func calls(t *testing.T, folder string) (found []*ast.CallExpr) {
	t.Helper()
	files, err := fs.Glob(os.DirFS(filepath.Join(root, folder)), "*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, folder, name), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok {
				found = append(found, call)
			}
			return true
		})
	}
	return found
}

func literal(e ast.Expr) string {
	if l, ok := e.(*ast.BasicLit); ok && l.Kind == token.STRING {
		text, _ := strconv.Unquote(l.Value)
		return text
	}
	return ""
}

func decode(t *testing.T, texts [][]byte) []object {
	t.Helper()
	objects := make([]object, len(texts))
	for i, text := range texts {
		if err := yaml.Unmarshal(text, &objects[i]); err != nil {
			t.Fatal(err)
		}
	}
	return objects
}

// replaceOnce returns the objects with new text instead of the first old one.
func replaceOnce(t *testing.T, texts [][]byte, change [2]string) [][]byte {
	t.Helper()
	separator := []byte("\n---\n")
	joined := bytes.Join(texts, separator)
	if !bytes.Contains(joined, []byte(change[0])) {
		t.Errorf("the manifests have no %q", change[0])
	}
	return bytes.Split(bytes.Replace(joined, []byte(change[0]), []byte(change[1]), 1), separator)
}

// TestRepository checks our rules on every folder of the repository.
func TestRepository(t *testing.T) {
	t.Parallel()
	r := newRules(t)
	for _, folder := range folders {
		texts, err := render(folder)
		if err != nil {
			t.Errorf("%s: %v", folder, err)
			continue
		}
		for _, fault := range r.judge(decode(t, texts)) {
			t.Errorf("%s: %s", folder, fault)
		}
	}
}

// TestRules checks that each rule finds manifests that break it.
func TestRules(t *testing.T) {
	t.Parallel()
	r := newRules(t)
	texts, err := render(folders[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, change := range [][2]string{
		{"replicas: 2", "replicas: 1"},
		{"automountServiceAccountToken: false", "automountServiceAccountToken: true"},
		{"enableServiceLinks: false", "enableServiceLinks: true"},
		{"enableServiceLinks: false", "enableServiceLinks: false\n      hostNetwork: true"},
		{"terminationGracePeriodSeconds: 40", "terminationGracePeriodSeconds: 29"},
		{"runAsNonRoot: true", "runAsNonRoot: false"}, {"runAsUser: 65532", "runAsUser: 0"}, {"RuntimeDefault", "Unconfined"},
		{"topologySpreadConstraints", "topologySpread"},
		{"allowPrivilegeEscalation: false", "privileged: true"}, {"readOnlyRootFilesystem: true", "readOnlyRootFilesystem: false"},
		{"- ALL", "- NET_RAW"},
		{"holdfast:0.1.0", "holdfast:latest"}, {"holdfast:0.1.0", "holdfast"}, {"holdfast:0.1.0", "holdfast:0.2.0"},
		{"HOLDFAST_STRATEGY", "HOLDFAST_STRATEGIE"}, {"HOLDFAST_MIGRATE", "HOLDFAST_FENCE"},
		{"HOLDFAST_STRATEGY", "HOLDFAST_REDIS"}, {"key: admin-token", "key: admin-token\n              optional: true"},
		{"value: 5s", "value: soon"}, {"value: 5s", "value: 20s"}, {"seconds: 5\n", "seconds: 0\n"},
		{"path: /readyz", "path: /ready"}, {"path: /healthz", "path: /livez"}, {"startupProbe", "otherProbe"},
		{"port: http", "port: ops"}, {"value: 0.0.0.0:8080", "value: 0.0.0.0:8081"}, {"timeoutSeconds: 3", "timeoutSeconds: 1"},
		{"memory: 512Mi", "storage: 512Mi"}, {"- migrate\n", "- serve\n"},
		{"maxUnavailable: 1\n", "maxUnavailable: 2\n"}, {"kind: PodDisruptionBudget", "kind: Secret"},
		{"  - Egress\n", ""}, {"- from:", "- to:"}, {"to:\n    - name", "from:\n    - name"},
		{"k8s-app: kube-dns", "app.kubernetes.io/name: holdfast"}, {"podSelector:\n    matchLabels:\n      app", "podSelector:\n    matchLabels:\n      job"},
		{"  selector:\n    app", "  selector:\n    job"}, {"      labels:\n        app", "      labels:\n        job"},
	} {
		if len(r.judge(decode(t, replaceOnce(t, texts, change)))) == 0 {
			t.Errorf("%q instead of %q is not found", change[1], change[0])
		}
	}
}

// TestSchemas checks that kubeconform accepts the repository's manifests, and rejects mistakes in
// them.
func TestSchemas(t *testing.T) {
	t.Parallel()
	schemas := t.TempDir()
	if err := writeSchemas(t.Context(), schemas); err != nil {
		t.Fatal(err)
	}
	for _, folder := range folders {
		texts, err := render(folder)
		if err != nil {
			t.Fatal(err)
		}
		if err := validate(schemas, texts); err != nil {
			t.Errorf("%s: %v", folder, err)
		}
	}
	texts, err := render(folders[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, change := range [][2]string{
		{"readinessProbe:", "readynessProbe:"}, {"secretKeyRef:", "secretKeyref:"}, {"  replicas:", "  replica:"},
		{"sleep:", "wait:"}, {"readOnlyRootFilesystem:", "readOnlyRootFileSystem:"}, {"matchLabels:", "matchLabel:"},
		{"policyTypes:", "policyType:"}, {"unhealthyPodEvictionPolicy:", "evictionPolicy:"}, {"targetPort:", "targetport:"},
		{"replicas: 2", "replicas: two"}, {"containerPort: 8080", `containerPort: "8080"`}, {"runAsNonRoot: true", `runAsNonRoot: "yes"`},
		{"kind: Deployment", "kind: Deploymint"}, {"apiVersion: apps/v1", "apiVersion: apps/v9"},
		{"- containerPort: 8080\n", "- hostIP: 127.0.0.1\n"},
	} {
		if err := validate(schemas, replaceOnce(t, texts, change)); err == nil {
			t.Errorf("%q instead of %q is valid", change[1], change[0])
		}
	}
}
