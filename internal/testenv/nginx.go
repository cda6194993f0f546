package testenv

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"syscall"
)

// nginxPackages are the packages of an nginx with Lua.
const nginxPackages = "nginx libnginx-mod-http-lua lua-nginx-redis lua-cjson"

var (
	nginx        = dependency{"nginx", nginxPackages, ""}
	nginxModules = []dependency{
		{"/usr/lib/nginx/modules/ndk_http_module.so", nginxPackages, ""},
		{"/usr/lib/nginx/modules/ngx_http_lua_module.so", nginxPackages, ""},
		{"/usr/share/lua/5.1/nginx/redis.lua", nginxPackages, ""},
	}
)

// NginxServer is one nginx with Lua.
type NginxServer struct{ Server }

// OwnNginx starts an nginx for this test, in a folder with these files, by path.
// nginx.conf must be one of them. OwnNginx adds site/modules.conf, which
// nginx.conf must include at the top, and listen.conf, which it must include in a
// server block. The folder temp is for temporary files. environment are
// additional variables as NAME=value.
func OwnNginx(t T, files map[string]string, environment ...string) *NginxServer {
	t.Helper()
	return own(t, "nginx", func() (*NginxServer, error) { return startNginx(files, environment) })
}

// URL returns http://host:port.
func (s *NginxServer) URL() string { return "http://" + s.Addr() }

// Folder returns the folder with the server's files.
func (s *NginxServer) Folder() string { return s.folder }

func startNginx(files map[string]string, environment []string) (*NginxServer, error) {
	path, err := lookPath(nginx)
	if err != nil {
		return nil, err
	}
	modules := ""
	for _, m := range nginxModules {
		if _, err := lookPath(m); err != nil {
			return nil, err
		}
		if filepath.Ext(m.file) == ".so" {
			modules += "load_module " + m.file + ";\n"
		}
	}
	folder, port, err := env.newPlace("nginx", nil)
	if err != nil {
		return nil, err
	}
	if err := os.Mkdir(filepath.Join(folder, "temp"), 0o755); err != nil {
		return nil, err
	}
	write := func(name, text string) error {
		file := filepath.Join(folder, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		return os.WriteFile(file, []byte(text), 0o644)
	}
	for name, text := range files {
		if err := write(name, text); err != nil {
			return nil, err
		}
	}
	if err := write("listen.conf", fmt.Sprintf("listen %s;\n", port.addr())); err != nil {
		return nil, err
	}
	if err := write("site/modules.conf", modules); err != nil {
		return nil, err
	}
	s := &NginxServer{newServer("nginx", folder, []string{
		path, "-p", folder, "-c", filepath.Join(folder, "nginx.conf"), "-e", "stderr", "-g", "daemon off;",
	}, port)}
	s.process.endSignal = syscall.SIGTERM // after SIGKILL its workers would keep running
	s.process.env = slices.Concat(os.Environ(), environment)
	s.answers = func(ctx context.Context) error {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", port.addr())
		if err != nil {
			return err
		}
		return conn.Close()
	}
	return s, s.start()
}
