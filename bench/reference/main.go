// Command reference contains four small programs to compare the service with. Each
// does what the first version of a flash sale often does: it has no validation, no
// idempotency, no recovery and no metrics.
//
//	a  answers 201
//	b  like a, and counts the stock down in Redis with one EVALSHA; stores nothing
//	c  like b, and inserts a row for each order
//	d  like b, and inserts rows in groups; answers after the commit
package main

import (
	"context"
	"database/sql"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/gin-gonic/gin"
	_ "github.com/go-sql-driver/mysql"
	"github.com/google/uuid"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/redis/go-redis/v9"
)

func main() {
	program := flag.String("program", "a", "a, b, c or d")
	listen := flag.String("listen", "127.0.0.1:0", "address to serve on")
	redisAddr := flag.String("redis", "", "`host:port` of Redis, for b, c and d")
	driver := flag.String("driver", "mysql", "database/sql driver for c and d: mysql or pgx")
	source := flag.String("source", "", "database/sql data source for c and d")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()

	s := &shop{}
	if *program != "a" {
		s.redis = redis.NewClient(&redis.Options{Addr: *redisAddr})
		defer s.redis.Close()
	}
	if *program == "c" || *program == "d" {
		db, err := sql.Open(*driver, *source)
		if err != nil {
			log.Fatal(err)
		}
		defer db.Close()
		db.SetMaxOpenConns(64)
		db.SetMaxIdleConns(64)
		s.db, s.dollars = db, *driver == "pgx"
	}
	handlers := map[string]gin.HandlerFunc{"a": s.answer, "b": s.count, "c": s.insert, "d": s.group}
	if *program == "d" {
		s.waiting = make(chan *row, 4096)
		for range 2 {
			go s.commit()
		}
	}
	gin.SetMode(gin.ReleaseMode)
	engine := gin.New()
	engine.POST("/orders", handlers[*program])
	engine.GET("/readyz", func(c *gin.Context) { c.Status(http.StatusOK) })
	listener, err := net.Listen("tcp", *listen)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("listening on http://%s\n", listener.Addr())
	server := &http.Server{Handler: engine, ReadHeaderTimeout: 10 * time.Second}
	go func() {
		<-ctx.Done()
		_ = server.Close()
	}()
	if err := server.Serve(listener); err != http.ErrServerClosed {
		log.Fatal(err)
	}
}

type shop struct {
	redis   *redis.Client
	db      *sql.DB
	dollars bool // placeholders are $1, $2, … instead of ?
	waiting chan *row
}

// row is an order that waits to be inserted with its group.
type row struct {
	id   uuid.UUID
	done chan error
}

var cut = redis.NewScript(`
local left = tonumber(redis.call('GET', KEYS[1]))
if not left or left < 1 then return 0 end
redis.call('DECR', KEYS[1])
return 1`)

func created(c *gin.Context) { c.JSON(http.StatusCreated, gin.H{"status": "pending"}) }

func (s *shop) answer(c *gin.Context) { created(c) }

// take decrements the count. If it fails, it answers the request and returns false.
func (s *shop) take(c *gin.Context) bool {
	n, err := cut.EvalSha(c, s.redis, []string{"stock"}).Int()
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		n, err = cut.Eval(c, s.redis, []string{"stock"}).Int()
	}
	switch {
	case err != nil:
		c.JSON(http.StatusServiceUnavailable, gin.H{"error": err.Error()})
	case n == 0:
		c.JSON(http.StatusConflict, gin.H{"error": "sold out"})
	}
	return err == nil && n == 1
}

func (s *shop) count(c *gin.Context) {
	if s.take(c) {
		created(c)
	}
}

func (s *shop) insert(c *gin.Context) {
	if !s.take(c) {
		return
	}
	if err := s.store(c, []uuid.UUID{uuid.New()}); err != nil {
		c.JSON(http.StatusServiceUnavailable, gin.H{"error": err.Error()})
		return
	}
	created(c)
}

func (s *shop) group(c *gin.Context) {
	if !s.take(c) {
		return
	}
	r := &row{uuid.New(), make(chan error, 1)}
	s.waiting <- r
	if err := <-r.done; err != nil {
		c.JSON(http.StatusServiceUnavailable, gin.H{"error": err.Error()})
		return
	}
	created(c)
}

// commit inserts the waiting rows in groups of at most 128, in an endless loop.
func (s *shop) commit() {
	for r := range s.waiting {
		rows := []*row{r}
	gather:
		for len(rows) < 128 {
			select {
			case r := <-s.waiting:
				rows = append(rows, r)
			default:
				break gather
			}
		}
		ids := make([]uuid.UUID, len(rows))
		for i, r := range rows {
			ids[i] = r.id
		}
		err := s.store(context.Background(), ids)
		for _, r := range rows {
			r.done <- err
		}
	}
}

func (s *shop) store(ctx context.Context, ids []uuid.UUID) error {
	var (
		tuples strings.Builder
		args   []any
	)
	for i, id := range ids {
		if i > 0 {
			tuples.WriteByte(',')
		}
		if s.dollars {
			fmt.Fprintf(&tuples, "($%d,$%d,$%d)", 3*i+1, 3*i+2, 3*i+3)
		} else {
			tuples.WriteString("(?,?,?)")
		}
		args = append(args, id.String(), "buyer", 1)
	}
	_, err := s.db.ExecContext(ctx, "INSERT INTO reference_orders (id, buyer, quantity) VALUES "+tuples.String(), args...)
	return err
}
