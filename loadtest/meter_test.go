package main

import (
	"testing"

	"github.com/holdfast-stock/holdfast/internal/lab/machine"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// TestAddTarget checks that a gateway at --target is found. TestOpenLoad covers the service.
func TestAddTarget(t *testing.T) {
	t.Parallel()
	if machine.CPUTime([]int{1}) == 0 {
		t.Skip("needs /proc")
	}
	gateway := testenv.OwnNginx(t, map[string]string{"nginx.conf": `include site/modules.conf;
		pid temp/pid;
		events {}
		http {
			access_log off;
			client_body_temp_path temp/body; proxy_temp_path temp/proxy; fastcgi_temp_path temp/fastcgi;
			uwsgi_temp_path temp/uwsgi; scgi_temp_path temp/scgi;
			server { include listen.conf; return 204; }
		}`})
	m := &meter{}
	m.addTarget(gateway.URL())
	if len(m.gateway) == 0 || len(m.instances) != 0 {
		t.Errorf("behind nginx: instances %v, gateway %v", m.instances, m.gateway)
	}
	m = &meter{}
	for _, target := range []string{"http://192.0.2.1:80", "http://127.0.0.1", "http://127.0.0.1:1"} {
		m.addTarget(target)
	}
	if len(m.gateway)+len(m.instances) != 0 {
		t.Errorf("nothing listens here: instances %v, gateway %v", m.instances, m.gateway)
	}
}
