package main

import (
	"container/heap"
	"math/rand/v2"
	"time"
)

// strategy is how a strategy of the service sells one hot SKU, with only what orders wait for.
type strategy struct {
	name string
	// group is the maximum number of orders in a transaction, and parallel the number of
	// transactions that an instance runs at once.
	group, parallel int
	// trips is the number of round trips of a transaction to the database. locked is how many of
	// them it makes while its row is locked. A group sent as one text makes one trip, and none
	// while the row is locked.
	trips, locked int
	rows          int // rows of the SKU in the ledger; 0: no transaction waits for a row, as with a row for each unit

	service  time.Duration // CPU of the service for an order
	redis    time.Duration // CPU of Redis for an order
	database time.Duration // CPU of the database for an order
	each     time.Duration // CPU of the database for a transaction
}

// setup is the machines and the load that a strategy is simulated with.
type setup struct {
	clients   int           // each client has one order under way
	instances int           // instances of the service
	cores     int           // cores that everything shares, including the load generator
	generator time.Duration // CPU of the load generator for an order
	network   time.Duration // round trip between service and database
	commit    time.Duration // from COMMIT until it is durable; the row stays locked
}

// outcome is the result of a simulation.
type outcome struct {
	perSecond float64
	group     float64 // orders in a transaction, on average
}

// simulate lets the clients order for the time during, after a warm-up of a tenth of it.
// Each CPU time and each commit varies randomly by up to a fifth, seeded by seed.
func simulate(of strategy, on setup, during time.Duration, seed uint64) outcome {
	s := &simulation{strategy: of, setup: on, cpu: newResource(on.cores), random: rand.New(rand.NewPCG(seed, 0))}
	for range of.rows {
		s.rows = append(s.rows, newResource(1))
	}
	s.instances = make([]instance, on.instances)
	for i := range on.clients {
		s.client(i % on.instances)
	}
	warm := during / 10
	s.run(warm)
	orders, groups := s.orders, s.groups
	s.run(warm + during)
	orders, groups = s.orders-orders, s.groups-groups
	return outcome{float64(orders) / during.Seconds(), float64(orders) / float64(max(groups, 1))}
}

// simulation is a simulation under way.
type simulation struct {
	strategy
	setup
	now    time.Duration
	events events
	random *rand.Rand

	cpu       *resource
	rows      []*resource
	instances []instance
	orders    int
	groups    int
}

// instance is an instance of the service.
type instance struct {
	waiting  int // orders that no transaction has yet
	underWay int // transactions
}

// client sends orders in an endless loop. Each order passes the load generator, the service, the
// gate and a transaction.
func (s *simulation) client(i int) {
	s.use(s.generator+s.service+s.redis, func() {
		s.instances[i].waiting++
		s.begin(i)
	})
}

// begin starts a transaction of the instance if orders wait and one may start.
func (s *simulation) begin(i int) {
	in := &s.instances[i]
	if in.waiting == 0 || in.underWay == s.parallel {
		return
	}
	n := min(in.waiting, s.group)
	in.waiting -= n
	in.underWay++
	work := s.each + time.Duration(n)*s.database
	end := func() {
		s.orders += n
		s.groups++
		in.underWay--
		for range n {
			s.client(i)
		}
		s.begin(i)
	}
	before := s.network * time.Duration(s.trips-s.locked) / 2
	s.after(before, func() {
		s.lock(i, func(unlock func()) {
			s.use(work, func() {
				s.after(s.network*time.Duration(s.locked)+s.vary(s.commit), func() {
					unlock()
					s.after(before, end)
				})
			})
		})
	})
}

// lock waits for the row that instance i uses, and calls locked when it is locked.
func (s *simulation) lock(i int, locked func(unlock func())) {
	if len(s.rows) == 0 {
		locked(func() {})
		return
	}
	row := s.rows[i%len(s.rows)]
	row.acquire(func() { locked(row.release) })
}

// use waits for a core and uses it.
func (s *simulation) use(d time.Duration, done func()) {
	s.cpu.acquire(func() {
		s.after(s.vary(d), func() {
			s.cpu.release()
			done()
		})
	})
}

func (s *simulation) vary(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.8 + 0.4*s.random.Float64()))
}

// resource is something of which a number of units can be used at once, such as cores or a row lock.
// Callers that find no free unit wait, and get one in the order of their calls.
type resource struct {
	free    int
	waiting []func()
}

func newResource(units int) *resource { return &resource{free: units} }

func (r *resource) acquire(then func()) {
	if r.free == 0 {
		r.waiting = append(r.waiting, then)
		return
	}
	r.free--
	then()
}

func (r *resource) release() {
	if len(r.waiting) == 0 {
		r.free++
		return
	}
	next := r.waiting[0]
	r.waiting = r.waiting[1:]
	next()
}

// event is something that happens at a time. Events at the same time happen in the order in
// which they were planned.
type event struct {
	at time.Duration
	n  int
	do func()
}

type events struct {
	heap []event
	n    int
}

func (e *events) Len() int { return len(e.heap) }
func (e *events) Less(i, j int) bool {
	return e.heap[i].at < e.heap[j].at || e.heap[i].at == e.heap[j].at && e.heap[i].n < e.heap[j].n
}
func (e *events) Swap(i, j int) { e.heap[i], e.heap[j] = e.heap[j], e.heap[i] }
func (e *events) Push(x any)    { e.heap = append(e.heap, x.(event)) }
func (e *events) Pop() any {
	last := e.heap[len(e.heap)-1]
	e.heap = e.heap[:len(e.heap)-1]
	return last
}

func (s *simulation) after(d time.Duration, do func()) {
	s.events.n++
	heap.Push(&s.events, event{s.now + d, s.events.n, do})
}

// run carries out all events up to the given time.
func (s *simulation) run(until time.Duration) {
	for s.events.Len() > 0 && s.events.heap[0].at <= until {
		e := heap.Pop(&s.events).(event)
		s.now = e.at
		e.do()
	}
	s.now = until
}
