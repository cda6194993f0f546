// Package deploy holds the tests of what is deployed: the images' recipes, the
// servers' settings and docker-compose.yml.
package deploy

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gin-gonic/gin/binding"

	"github.com/holdfast-stock/holdfast/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// root is the top of the repository.
const root = ".."

// service is what the tests look at of a service.
type service struct {
	Image       string
	Build       map[string]string
	Restart     string
	ReadOnly    bool     `yaml:"read_only"`
	CapDrop     []string `yaml:"cap_drop"`
	SecurityOpt []string `yaml:"security_opt"`
	Profiles    []string
	Command     any
	Entrypoint  any
	Environment map[string]any
	Volumes     []string
	Tmpfs       []string
	Networks    []string
	Ports       []string
	Healthcheck struct{ Test any }
	DependsOn   map[string]struct {
		Condition string
		Required  *bool
	} `yaml:"depends_on"`
}

type compose struct {
	Services map[string]service
	Volumes  map[string]any
	Networks map[string]any
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func parse(t *testing.T, text string) (c compose) {
	t.Helper()
	// The YAML parser that the module has anyway.
	if err := binding.YAML.BindBody([]byte(text), &c); err != nil {
		t.Fatal(err)
	}
	if len(c.Services) == 0 {
		t.Fatal("no services")
	}
	return c
}

var (
	// pinned is an image with a version of two numbers at the least.
	pinned = regexp.MustCompile(`^[a-z0-9./-]+:v?\d+\.\d+[a-z0-9.-]*$`)
	// own is an image that is built here.
	own = regexp.MustCompile(`^holdfast-[a-z]+:\$\{HOLDFAST_VERSION:-\d+\.\d+\.\d+\}$`)
	// secretName is a variable whose value is nobody's business.
	secretName = regexp.MustCompile(`PASSWORD|PWD|TOKEN|SECRET|AUTH`)
	// secretValue is a secret from outside that has no default.
	secretValue = regexp.MustCompile(`^\$\{[A-Z_]+(:\?[^}]+|:-)\}$`)
	// credentials are those in a URL.
	credentials = regexp.MustCompile(`://[^:/@\s]*:([^@\s]+)@`)
	required    = regexp.MustCompile(`\$\{([A-Z_]+):\?`)
	optional    = regexp.MustCompile(`\$\{([A-Z_]+):-`)
	inShell     = regexp.MustCompile(`--(?:requirepass|masterauth)\s+(\S+)`)
)

// faults are what is wrong with a service.
func (c compose) faults(name string) (faults []string) {
	s := c.Services[name]
	fault := func(format string, args ...any) {
		faults = append(faults, name+": "+fmt.Sprintf(format, args...))
	}
	if s.Build == nil && s.Image != "" && !pinned.MatchString(s.Image) && !own.MatchString(s.Image) ||
		s.Build != nil && !own.MatchString(s.Image) || s.Image == "" {
		fault("image %q is not pinned", s.Image)
	}
	if s.Build != nil {
		recipe := filepath.Join(root, s.Build["context"], "Dockerfile")
		if s.Build["dockerfile"] != "" {
			recipe = filepath.Join(root, s.Build["context"], s.Build["dockerfile"])
		}
		if _, err := os.Stat(recipe); err != nil {
			fault("%v", err)
		}
	}
	job := s.Restart == "no"
	if !job && s.Healthcheck.Test == nil {
		fault("has no health check and is no job")
	}
	if !s.ReadOnly || !slices.Equal(s.CapDrop, []string{"ALL"}) || !slices.Contains(s.SecurityOpt, "no-new-privileges:true") {
		fault("is not hardened")
	}
	for key, value := range s.Environment {
		text := fmt.Sprint(value)
		if secretName.MatchString(key) && !strings.HasPrefix(key, "MARIADB_RANDOM_") && !secretValue.MatchString(text) {
			fault("%s has the literal value %q", key, text)
		}
		for _, found := range credentials.FindAllStringSubmatch(text, -1) {
			if !strings.HasPrefix(found[1], "${") {
				fault("%s has a literal password", key)
			}
		}
	}
	for _, words := range []any{s.Command, s.Entrypoint} {
		for _, found := range inShell.FindAllStringSubmatch(fmt.Sprint(words), -1) {
			if !strings.HasPrefix(strings.Trim(found[1], `"`), "$$") {
				fault("a literal password in a command")
			}
		}
	}
	for _, volume := range s.Volumes {
		from, _, _ := strings.Cut(volume, ":")
		if !strings.HasPrefix(from, ".") {
			if _, ok := c.Volumes[from]; !ok {
				fault("volume %s is not declared", from)
			}
			continue
		}
		if info, err := os.Stat(filepath.Join(root, from)); err != nil || info.IsDir() {
			fault("%s is no file: %v", from, err)
		}
		if !strings.HasSuffix(volume, ":ro") {
			fault("%s can be written", from)
		}
	}
	for _, network := range s.Networks {
		if _, ok := c.Networks[network]; !ok {
			fault("network %s is not declared", network)
		}
	}
	if len(s.Networks) == 0 {
		fault("is on no network of ours")
	}
	for _, port := range s.Ports {
		if !strings.HasPrefix(port, "127.0.0.1:") {
			fault("port %s is open to other machines", port)
		}
	}
	for other, how := range s.DependsOn {
		needed, ok := c.Services[other]
		switch {
		case !ok:
			fault("depends on %s, which is not there", other)
		case (how.Condition == "service_completed_successfully") != (needed.Restart == "no"):
			fault("waits for %s to be %s", other, how.Condition)
		case len(needed.Profiles) > 0 && len(s.Profiles) == 0 && (how.Required == nil || *how.Required):
			fault("depends on %s of profile %v", other, needed.Profiles)
		}
	}
	return faults
}

// TestCompose holds docker-compose.yml to its rules.
func TestCompose(t *testing.T) {
	t.Parallel()
	text := read(t, "docker-compose.yml")
	c := parse(t, text)
	profiles := map[string]bool{}
	var least []string
	for name, s := range c.Services {
		for _, fault := range c.faults(name) {
			t.Error(fault)
		}
		for _, p := range s.Profiles {
			profiles[p] = true
		}
		if len(s.Profiles) == 0 {
			least = append(least, name)
		}
	}
	slices.Sort(least)
	if want := []string{"api-1", "api-2", "gateway", "ledger-id", "mariadb", "migrate", "redis"}; !slices.Equal(least, want) {
		t.Errorf("docker compose up starts %v, want %v", least, want)
	}
	if got, want := slices.Sorted(maps.Keys(profiles)), []string{"cluster", "etcd", "postgres", "redlock", "zookeeper"}; !slices.Equal(got, want) {
		t.Errorf("profiles %v, want %v", got, want)
	}

	example := read(t, ".env.example")
	for _, found := range required.FindAllStringSubmatch(text, -1) {
		if !regexp.MustCompile(`(?m)^` + found[1] + `=$`).MatchString(example) {
			t.Errorf(".env.example does not ask for %s", found[1])
		}
	}
	for _, found := range optional.FindAllStringSubmatch(text, -1) {
		if !regexp.MustCompile(`(?m)^#?` + found[1] + `=`).MatchString(example) {
			t.Errorf(".env.example does not know %s", found[1])
		}
	}
}

// TestComposeConvicts: each rule finds the service that breaks it.
func TestComposeConvicts(t *testing.T) {
	t.Parallel()
	const sound = `
services:
  db:
    image: mariadb:10.11.8
    read_only: true
    cap_drop: [ALL]
    security_opt: ["no-new-privileges:true"]
    healthcheck: {test: [CMD, "true"]}
    environment: {DB_PASSWORD: "${DB_PASSWORD:?set it}", URL: "mysql://u:${DB_PASSWORD:?set it}@h/x"}
    command: [sh, -c, 'exec redis-server --requirepass "$$SECRET"']
    volumes: ["./docker-compose.yml:/x:ro", "data:/data"]
    networks: [net]
volumes: {data: }
networks: {net: }
`
	if faults := parse(t, sound).faults("db"); len(faults) > 0 {
		t.Fatal(faults)
	}
	for _, change := range [][2]string{
		{"mariadb:10.11.8", "mariadb"}, {"mariadb:10.11.8", "mariadb:latest"}, {"mariadb:10.11.8", "mariadb:10"},
		{"read_only: true", "read_only: false"}, {"[ALL]", "[NET_RAW]"}, {"no-new-privileges", "label"},
		{"healthcheck:", "x-healthcheck:"},
		{`"${DB_PASSWORD:?set it}", URL`, `hush, URL`}, {`"${DB_PASSWORD:?set it}", URL`, `"${DB_PASSWORD:-hush}", URL`},
		{"u:${DB_PASSWORD:?set it}@", "u:hush@"}, {`"$$SECRET"`, "hush"},
		{"./docker-compose.yml", "./nothing.yml"}, {":/x:ro", ":/x"}, {"data:/data", "date:/data"}, {"[net]", "[other]"},
	} {
		broken := strings.Replace(sound, change[0], change[1], 1)
		if broken == sound {
			t.Errorf("%q is not there", change[0])
		} else if len(parse(t, broken).faults("db")) == 0 {
			t.Errorf("%q for %q goes unnoticed", change[1], change[0])
		}
	}
}

// TestComposeConfig has Docker itself read the file, where it is there.
func TestComposeConfig(t *testing.T) {
	t.Parallel()
	docker, err := exec.LookPath("docker")
	if err != nil || exec.Command(docker, "compose", "version").Run() != nil {
		t.Log("docker compose is not here: what it says of the file is left to where it is")
		return
	}
	env := filepath.Join(t.TempDir(), "env")
	filled := regexp.MustCompile(`(?m)^([A-Z_]+)=$`).ReplaceAllString(read(t, ".env.example"), "$1=x")
	if err := os.WriteFile(env, []byte(filled), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, profiles := range []string{"", "*"} {
		args := []string{"compose", "--env-file", env, "--file", filepath.Join(root, "docker-compose.yml")}
		if profiles != "" {
			args = append(args, "--profile", profiles)
		}
		if out, err := exec.Command(docker, append(args, "config", "--quiet")...).CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	}
}
