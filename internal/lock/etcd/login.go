package etcd

import (
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

// connect returns a client. If it has a user, it logs in on a connection without credentials.
//
// The library would send the token of the last login with the next one. Servers before 3.5 refuse
// an expired token there. The library then logs in again within the login, until ctx ends or the
// stack overflows, and the client never recovers.
func connect(config clientv3.Config) (*clientv3.Client, error) {
	if config.Username == "" {
		return clientv3.New(config)
	}
	anonymous := config
	anonymous.Username, anonymous.Password = "", ""
	anonymous.MaxUnaryRetries = 1 // the client with the user repeats its login itself
	logins, err := clientv3.New(anonymous)
	if err != nil {
		return nil, err
	}
	config.DialOptions = []grpc.DialOption{grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string,
		request, answer any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption,
	) error {
		if method == pb.Auth_Authenticate_FullMethodName {
			return logins.ActiveConnection().Invoke(ctx, method, request, answer, options...)
		}
		return invoke(ctx, method, request, answer, conn, options...)
	})}
	client, err := clientv3.New(config)
	if err != nil {
		_ = logins.Close()
		return nil, err
	}
	context.AfterFunc(client.Ctx(), func() { _ = logins.Close() })
	return client, nil
}
