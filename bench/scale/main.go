package main

import (
	"fmt"
	"time"
)

const us = time.Microsecond
const ms = time.Millisecond

func main() {
	for _, locked := range []int{0, 1} {
		for _, f := range []time.Duration{150, 500, 1000} {
			merged := way{"merged", 128, 1, 1, locked, 1, 40 * us, 0, 26*us - f*us/32, f * us}
			lua := way{"lua", 128, 1, 1, locked, 1, 54 * us, 14 * us, 26*us - f*us/32, f * us}
			fmt.Print(locked, f, " ")
			for _, w := range []way{merged, lua} {
				o := simulate(w, place{64, 1, 2, 13 * us, 0, 100 * us}, 5*time.Second, 1)
				fmt.Printf("| %s loop %.0f (%.0f) ", w.name, o.perSecond, o.group)
				for _, i := range []int{1, 2, 4} {
					o := simulate(w, place{128, i, 2, 13 * us, 2 * ms, 100 * us}, 5*time.Second, 1)
					fmt.Printf("%.0f (%.0f) ", o.perSecond, o.group)
				}
			}
			fmt.Println()
		}
	}
}
