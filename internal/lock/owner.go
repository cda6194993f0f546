package lock

import "context"

type ownerKey struct{}

// WithOwner marks the context, and all that are made of it, a lease's too, as
// the owner's: to a Locker, who asks for a lock that its owner holds already has
// it. The owner is a name like a request ID, known in this process only. The
// empty owner is none.
func WithOwner(ctx context.Context, owner string) context.Context {
	return context.WithValue(ctx, ownerKey{}, owner)
}

func ownerOf(ctx context.Context) string {
	owner, _ := ctx.Value(ownerKey{}).(string)
	return owner
}
