// Package deploy has the tests of the deployment files: Dockerfiles, settings of
// servers, and docker-compose.yml.
package deploy

import (
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/dotenv"
	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"

	"github.com/holdfast-stock/holdfast/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// root is the root of the repository.
const root = ".."

// read returns the text of a file of the repository.
func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// outside is the value of every variable that must be set outside the Compose file.
const outside = "outside"

// environment returns .env.example with its empty variables set.
func environment(t *testing.T) types.Mapping {
	t.Helper()
	variables, err := dotenv.Parse(strings.NewReader(read(t, ".env.example")))
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range variables {
		if value == "" {
			variables[name] = outside
		}
	}
	return variables
}

// load reads a Compose file with Compose's own loader, which checks the schema and
// the references.
func load(t *testing.T, text string, environment types.Mapping, profiles ...string) (*types.Project, error) {
	t.Helper()
	folder, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	return loader.LoadWithContext(t.Context(), types.ConfigDetails{
		WorkingDir: folder, Environment: environment,
		ConfigFiles: []types.ConfigFile{{Filename: "docker-compose.yml", Content: []byte(text)}},
	}, func(o *loader.Options) {
		o.SetProjectName("holdfast", true)
		o.Profiles = profiles
	})
}

var (
	// pinned matches an image with a version of at least two numbers.
	pinned = regexp.MustCompile(`^[a-z0-9./-]+:v?\d+\.\d+[a-z0-9.-]*$`)
	// own matches an image that this repository builds.
	own = regexp.MustCompile(`^holdfast-[a-z]+:\d+\.\d+\.\d+$`)
	// secretName matches the name of a variable with a secret value.
	secretName = regexp.MustCompile(`PASSWORD|PWD|TOKEN|SECRET|CLI_?AUTH`)
	// credentials matches a password in a URL.
	credentials = regexp.MustCompile(`://[^:/@\s]*:([^@\s]+)@`)
	// required and optional match a variable without and with a default.
	required = regexp.MustCompile(`\$\{([A-Z_]+):\?`)
	optional = regexp.MustCompile(`\$\{([A-Z_]+):-`)
	// fallback matches a variable and its non-empty default.
	fallback = regexp.MustCompile(`\$\{([A-Z_]+):-([^}]+)`)
	// inShell matches a password on the command line of a Redis server.
	inShell = regexp.MustCompile(`--(?:requirepass|masterauth)\s+(\S+)`)
)

// service is a service of the Compose file, with its violations of our rules.
type service struct {
	types.ServiceConfig
	faults []string
}

func (s *service) fault(format string, args ...any) {
	s.faults = append(s.faults, s.Name+": "+fmt.Sprintf(format, args...))
}

// faults returns the violations of our rules by a service. Compose itself checks its own rules.
func faults(p *types.Project, config types.ServiceConfig) []string {
	s := service{ServiceConfig: config}
	s.checkImage()
	s.checkProcess()
	s.checkSecrets()
	s.checkVolumes()
	s.checkNetwork()
	s.checkDependencies(p)
	return s.faults
}

// checkImage checks that the image is pinned, or built by a Dockerfile that exists.
func (s *service) checkImage() {
	if s.Build == nil && !pinned.MatchString(s.Image) || s.Build != nil && !own.MatchString(s.Image) {
		s.fault("image %q is not pinned", s.Image)
	}
	if s.Build != nil {
		if _, err := os.Stat(filepath.Join(s.Build.Context, s.Build.Dockerfile)); err != nil {
			s.fault("%v", err)
		}
	}
}

// checkProcess checks that the service has a health check unless it is a job, and
// few privileges.
func (s *service) checkProcess() {
	if s.Restart != types.RestartPolicyNo && s.HealthCheck == nil {
		s.fault("has no health check and is not a job")
	}
	if !s.ReadOnly || !slices.Equal(s.CapDrop, []string{"ALL"}) || !slices.Contains(s.SecurityOpt, "no-new-privileges:true") {
		s.fault("is not hardened")
	}
}

// checkSecrets checks that the file contains no password.
func (s *service) checkSecrets() {
	for key, value := range s.Environment {
		if value == nil {
			s.fault("%s has no value and is taken from the shell that runs Compose", key)
			continue
		}
		if secretName.MatchString(key) && !strings.HasPrefix(key, "MARIADB_RANDOM_") && *value != outside && *value != "" {
			s.fault("%s has the literal value %q", key, *value)
		}
		for _, found := range credentials.FindAllStringSubmatch(*value, -1) {
			if found[1] != outside {
				s.fault("%s has a literal password", key)
			}
		}
	}
	for _, found := range inShell.FindAllStringSubmatch(strings.Join(slices.Concat(s.Entrypoint, s.Command), " "), -1) {
		if !strings.HasPrefix(strings.Trim(found[1], `"`), "$") {
			s.fault("has a literal password in a command")
		}
	}
}

// checkVolumes checks that mounted files exist and are read-only.
func (s *service) checkVolumes() {
	for _, volume := range s.Volumes {
		if volume.Type != types.VolumeTypeBind {
			continue
		}
		if info, err := os.Stat(volume.Source); err != nil || info.IsDir() {
			s.fault("%s is not a file: %v", volume.Source, err)
		}
		if !volume.ReadOnly {
			s.fault("%s is writable", volume.Source)
		}
	}
}

// checkNetwork checks that the service is on a network of the file, and that its
// ports are open to this machine only.
func (s *service) checkNetwork() {
	if _, ok := s.Networks["default"]; ok || len(s.Networks) == 0 {
		s.fault("is not on a network of the file")
	}
	for _, port := range s.Ports {
		if port.HostIP != "127.0.0.1" {
			s.fault("port %s is open to other machines", port.Published)
		}
	}
}

// checkDependencies checks that the service waits for jobs to complete, and does not
// depend on a service that only a profile starts.
func (s *service) checkDependencies(p *types.Project) {
	for other, how := range s.DependsOn {
		needed := p.Services[other]
		job := needed.Restart == types.RestartPolicyNo
		switch {
		case (how.Condition == types.ServiceConditionCompletedSuccessfully) != job:
			s.fault("waits for %s to be %s", other, how.Condition)
		case how.Required && len(needed.Profiles) > 0 && len(s.Profiles) == 0:
			s.fault("depends on %s of profile %v", other, needed.Profiles)
		}
	}
}

// secretDefaults returns the secret variables that have a default.
func secretDefaults(text string) (names []string) {
	for _, found := range fallback.FindAllStringSubmatch(text, -1) {
		if secretName.MatchString(found[1]) {
			names = append(names, found[1])
		}
	}
	return names
}

// TestCompose checks docker-compose.yml against Compose's rules, with every profile,
// and against ours.
func TestCompose(t *testing.T) {
	t.Parallel()
	text, env := read(t, "docker-compose.yml"), environment(t)
	least := []string{"api-1", "api-2", "gateway", "ledger-id", "mariadb", "migrate", "redis"}
	for profile, more := range map[string][]string{
		"":          nil,
		"cluster":   {"redis-cluster", "redis-cluster-1", "redis-cluster-2", "redis-cluster-3"},
		"etcd":      {"etcd"},
		"postgres":  {"ledger-id-postgres", "postgres"},
		"redlock":   {"redlock-1", "redlock-2", "redlock-3"},
		"zookeeper": {"zookeeper"},
	} {
		p, err := load(t, text, env, profile)
		if err != nil {
			t.Errorf("profile %q: %v", profile, err)
			continue
		}
		want := slices.Sorted(slices.Values(slices.Concat(least, more)))
		if got := slices.Sorted(slices.Values(p.ServiceNames())); !slices.Equal(got, want) {
			t.Errorf("profile %q starts %v, want %v", profile, got, want)
		}
	}
	all, err := load(t, text, env, "*")
	if err != nil {
		t.Fatal(err)
	}
	if got := all.ServiceNames(); len(got) != 18 {
		t.Errorf("the services are %v: this test does not know one of their profiles", got)
	}
	for _, s := range all.Services {
		for _, fault := range faults(all, s) {
			t.Error(fault)
		}
	}
	if names := secretDefaults(text); len(names) > 0 {
		t.Errorf("%v have defaults", names)
	}
	gateway := all.Services["gateway"].Networks["front"].Ipv4Address
	for _, name := range []string{"api-1", "api-2"} {
		env := all.Services[name].Environment
		if trusted := env["HOLDFAST_TRUSTED_PROXIES"]; trusted == nil || *trusted != gateway || net.ParseIP(gateway) == nil {
			t.Errorf("%s trusts %v, want only the gateway's address %q", name, trusted, gateway)
		}
		if limit := env["HOLDFAST_RATE_LIMIT"]; limit == nil || *limit == "0" {
			t.Errorf("%s has no rate limit", name)
		}
		if auth, secret := env["HOLDFAST_AUTH"], env["HOLDFAST_JWT_SECRET"]; auth == nil || *auth != "jwt" || secret == nil || *secret != outside {
			t.Errorf("%s does not ask buyers for tokens", name)
		}
	}

	example := read(t, ".env.example")
	for _, found := range required.FindAllStringSubmatch(text, -1) {
		if !regexp.MustCompile(`(?m)^` + found[1] + `=$`).MatchString(example) {
			t.Errorf(".env.example does not have %s=", found[1])
		}
		without := maps.Clone(env)
		delete(without, found[1])
		if _, err := load(t, text, without); err == nil || !strings.Contains(err.Error(), found[1]) {
			t.Errorf("without %s: %v", found[1], err)
		}
	}
	for _, found := range optional.FindAllStringSubmatch(text, -1) {
		if !regexp.MustCompile(`(?m)^#?` + found[1] + `=`).MatchString(example) {
			t.Errorf(".env.example does not mention %s", found[1])
		}
	}
	for _, found := range regexp.MustCompile(`(?m)^#?(HOLDFAST_[A-Z_]+)=`).FindAllStringSubmatch(example, -1) {
		if !strings.Contains(text, "${"+found[1]+":") {
			t.Errorf("docker-compose.yml does not pass on %s of .env.example", found[1])
		}
	}
}

// TestComposeRules checks that each rule finds a service that breaks it.
func TestComposeRules(t *testing.T) {
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
    ports: ["127.0.0.1:80:80"]
    networks: [net]
    depends_on: {job: {condition: service_completed_successfully}}
  job:
    image: mariadb:10.11.8
    restart: "no"
    read_only: true
    cap_drop: [ALL]
    security_opt: ["no-new-privileges:true"]
    networks: [net]
volumes: {data: }
networks: {net: }
`
	judge := func(text string) (found []string) {
		p, err := load(t, text, types.Mapping{"DB_PASSWORD": outside}, "*")
		if err != nil {
			return []string{err.Error()}
		}
		for _, s := range p.Services {
			found = append(found, faults(p, s)...)
		}
		return append(found, secretDefaults(text)...)
	}
	if found := judge(sound); len(found) > 0 {
		t.Fatal(found)
	}
	for _, change := range [][2]string{
		{"mariadb:10.11.8", "mariadb"}, {"mariadb:10.11.8", "mariadb:latest"}, {"mariadb:10.11.8", "mariadb:10"},
		{"read_only: true", "read_only: false"}, {"read_only: true", "readonly: true"}, {"[ALL]", "[NET_RAW]"}, {"no-new-privileges", "label"},
		{"healthcheck:", "x-healthcheck:"},
		{`"${DB_PASSWORD:?set it}", URL`, `hush, URL`}, {`"${DB_PASSWORD:?set it}", URL`, `"${DB_PASSWORD:-hush}", URL`},
		{"u:${DB_PASSWORD:?set it}@", "u:hush@"}, {`"$$SECRET"`, "hush"},
		{"./docker-compose.yml", "./nothing.yml"}, {":/x:ro", ":/x"}, {"data:/data", "date:/data"}, {"[net]", "[other]"},
		{"networks: [net]", "networks: []"}, {"127.0.0.1:80:80", "80:80"},
		{"{job:", "{jib:"}, {"service_completed_successfully", "service_healthy"},
		{`restart: "no"`, "restart: \"no\"\n    profiles: [other]"},
	} {
		broken := strings.Replace(sound, change[0], change[1], 1)
		if broken == sound {
			t.Errorf("the file has no %q", change[0])
		} else if len(judge(broken)) == 0 {
			t.Errorf("%q instead of %q is not found", change[1], change[0])
		}
	}
}

// TestComposeConfig checks the file with Docker Compose where it is installed.
func TestComposeConfig(t *testing.T) {
	t.Parallel()
	docker, err := exec.LookPath("docker")
	if err != nil || exec.Command(docker, "compose", "version").Run() != nil {
		t.Log("docker compose is not installed; the file is checked by its loader only")
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
