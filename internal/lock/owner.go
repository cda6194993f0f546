package lock

import "context"

type ownerKey struct{}

// WithOwner makes locks taken on the returned context and its children reentrant for owner. A
// lease's context is such a child. owner is a name, such as a request ID. It has a meaning in this
// process only. An empty owner means no owner.
func WithOwner(ctx context.Context, owner string) context.Context {
	return context.WithValue(ctx, ownerKey{}, owner)
}

func ownerOf(ctx context.Context) string {
	owner, _ := ctx.Value(ownerKey{}).(string)
	return owner
}
