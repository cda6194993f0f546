package pitfall

import (
	"cmp"
	"fmt"
)

// chinese has the Chinese texts of the timelines, by their English formats. It also has the words
// for actors and arguments. Commands and statements are the same in both languages.
var chinese = map[string]string{
	// Actors.
	"books":     "账目",
	"etcd":      "etcd",
	"ledger":    "账本",
	"network":   "网络",
	"primary":   "主库",
	"queue":     "队列",
	"recovery":  "恢复流程",
	"refill":    "装填",
	"replica":   "从库",
	"servers":   "服务器",
	"shop":      "店铺",
	"ZooKeeper": "ZooKeeper",

	// Requests and releases of locks.
	"%s → granted":           "%s → 得到锁",
	"%s → granted, token %d": "%s → 得到锁，令牌 %d",
	"%s → held":              "%s → 已被占用",
	"%s → gives up":          "%s → 放弃等待",
	"%s → refused: a majority of the servers does not answer": "%s → 被拒绝：多数服务器没有响应",
	"Unlock → ok": "Unlock → 成功",
	"Unlock → lost: another may hold the lock": "Unlock → 已失去：锁可能在别人手里",
	"Unlock → %v": "Unlock → %v",

	// The shop.
	"reads the stock: %d":                        "读取库存：%d",
	"refuses the order: sold out":                "拒绝订单：已售罄",
	"sees that its lease is lost, sells nothing": "发现租约已失去，不卖",
	"sells a unit":                               "卖出一件",
	"writes the stock: %d, sells a unit":         "写入库存：%d，卖出一件",

	// Holders that die, wait for themselves or outlast their leases.
	"is killed before it deletes the key":                                  "删除键之前被杀",
	"is killed before it sends PEXPIRE":                                    "发出 PEXPIRE 之前被杀",
	"asks every %v, and is granted the lock after %.1f s":                  "每 %v 申请一次，%.1f 秒后得到锁",
	"asks every %v for %.1f s, and is refused":                             "每 %v 申请一次，%.1f 秒内都被拒绝",
	"%s for longer than its lease: the key expires":                        "%s，超过了租约：键到期",
	"has a clock that is a minute ahead":                                   "的时钟快一分钟",
	"reads an end that has passed, and replaced it first: it has the lock": "读到的到期时间已过，又抢先改写：得到锁",
	"is paused": "停顿",
	"works":     "工作",
	"unlocks as the owner in the field, which is B's now":   "以字段里的所有者解锁，而它现在是 B",
	"names itself in the context: owner order-17":           "在 context 中写明自己：所有者 order-17",
	"calls a service that takes the same lock":              "调用一个要拿同一把锁的服务",
	"the service unlocks":                                   "该服务解锁",
	"works, for longer than its lease of %v":                "工作，超过了 %v 的租约",
	"works for %v; its lease of %v is renewed meanwhile":    "工作 %v，其间 %v 的租约不断续期",
	"renews the lock every %v, and works when that returns": "每 %v 给锁续期，等续期返回才工作",
	"has not begun its work":                                "还没有开始工作",
	"is paused for longer than its lease":                   "停顿，超过了租约",
	"continues":                                             "继续执行",
	"has read 1":                                            "已读到 1",
	"has read 1, and is paused for longer than its lease":   "已读到 1，停顿，超过了租约",
	"continues, and writes 0":                               "继续执行，写入 0",

	// Servers that fail.
	"loses its link to the primary":              "与主库断开",
	"is killed":                                  "被杀",
	"is promoted, without A's lock":              "提升为主库，没有 A 的锁",
	"the leader of three servers is killed":      "三台中的 leader 被杀",
	"another server is elected":                  "选出另一台",
	"is killed and restarted, with its data":     "被杀后重启，数据还在",
	"learns: %v":                                 "得知：%v",
	"the lock was lost: the connection was lost": "锁已失去：连接断开",
	"Redis %d restarts without its data":         "Redis %d 丢数据重启",
	"Redis 1 and 2 are down":                     "Redis 1 与 2 停机",
	"Redis 1 and 2 restart without their data":   "Redis 1 与 2 丢数据重启",
	"cannot renew its lease of %v, which ends":   "无法给 %v 的租约续期，租约到期",

	"the clock of Redis %d jumps ahead by a minute: the lock has expired": "Redis %d 的时钟向前跳一分钟：锁到期",
	"cuts A off from ZooKeeper":              "切断 A 与 ZooKeeper 的连接",
	"is told SUSPENDED, and works on":        "收到 SUSPENDED，照常工作",
	"ends A's session, and deletes its node": "结束 A 的会话，删除它的节点",

	// Waiters.
	"1 holder, %d waiters behind it":      "1 个持有者，后面 %d 个等待者",
	"a release: %d woken, 1 has the lock": "一次释放：唤醒 %d 个，1 个得到锁",
	"%d wake-ups for %d grants":           "%d 次唤醒，%d 次授予",

	// Gates.
	"takes a unit → %s":                              "预扣 1 件 → %s",
	"takes %d at the gate → %s":                      "预扣 %d 件 → %s",
	"takes 1 at the gate → accepted under epoch …%d": "预扣 1 件 → 接受，纪元 …%d",
	"accepted":          "接受",
	"refused: sold out": "拒绝：已售罄",
	"refused: the lock has been granted to another holder":             "拒绝：锁已授予别的持有者",
	"orders %d; both segments have 1":                                  "订购 %d 件，两个分段各有 1 件",
	"is told “sold out”":                                               "收到“已售罄”",
	"Redis may have lost data; the ledger has sold nothing yet":        "Redis 可能丢了数据；账本还没有卖出",
	"fills %d units under epoch …%d":                                   "装填 %d 件，纪元 …%d",
	"its order fails in the ledger, and gives its unit back":           "订单在账本中失败，归还它的一件",
	"its order fails in the ledger, and gives its unit back → dropped": "订单在账本中失败，归还它的一件 → 作废",
	"%d of %d units sold":                                              "库存 %[2]d 件，卖出 %[1]d 件",

	// Databases.
	"%s → no row":                             "%s → 没有行",
	"%s → rows: %d":                           "%s → 行数：%d",
	"%s; an index on sku: %v":                 "%s；sku 上有索引：%v",
	"%s; the SKUs are 10001, 10002 and 10010": "%s；SKU 有 10001、10002 与 10010",
	"true":                               "是",
	"false":                              "否",
	"has lost the race, and reads again": "竞争失败，重新读取",
	"has lost the race: the order fails": "竞争失败：订单失败",
	"COMMIT → no answer for %v; the outcome is unknown": "COMMIT → %v 没有响应，结果未知",
	"delivers A's COMMIT":                     "送达 A 的 COMMIT",
	"orders for 1 unit: %d":                   "1 件库存的订单数：%d",
	"finds no order, and gives the unit back": "查不到订单，归还这一件",
	"inserts a row with the ID of A's order; it waits for A's transaction": "插入一行，订单号与 A 的相同；等待 A 的事务",
	"the order can no longer be committed: gives the unit back":            "该订单再也无法提交：归还这一件",
	"the order is committed: its unit stays sold":                          "该订单已提交：这一件仍算卖出",
	"stock db: %s": "库存库：%s",
	"stock db: reads %d, keeps it for a rollback":                   "库存库：读到 %d，留作回滚",
	"accounts db: pays; the transaction is complete":                "账户库：付款，事务完成",
	"accounts db: too little money: the transaction must roll back": "账户库：余额不足，事务必须回滚",
	"%d sold and %d available of %d":                                "%[3]d 件中，卖出 %[1]d，剩余 %[2]d",

	// Damage.
	"oversold":                                   "超卖 %d 件",
	"left, although an order was refused":        "还剩 %d 件，却拒绝了订单",
	"left that this buyer could have had":        "还剩 %d 件，本可卖给这位买家",
	"left that the failed orders could have had": "还剩 %d 件，本可卖给失败的订单",
	"neither sold nor available":                 "%d 件既没有卖出，也不在库存里",
	"sold and still available":                   "%d 件卖出之后仍在库存里",
	"B waited, and the lock stays held until an operator deletes the key": "B 一直在等，要到有人手工删除键，锁才会释放",
	"A waited for itself, and the order failed":                           "A 等待自己，订单失败",
	"A has not begun its work, and no other client can":                   "A 还没有开始工作，别的客户端也无法开始",
	"B waited for a lock on another SKU, and its order failed":            "B 等待另一个 SKU 的锁，订单失败",
	"B waited for a lock on a row that does not exist, and failed":        "B 等待一个不存在的行的锁，失败了",

	// Verdicts.
	"it should sell all units":          "本应卖完全部",
	"it should do damage, and did none": "本应造成损失，却没有",
	"it should do no damage":            "本不应造成损失",
}

// translate formats a text in Chinese, if chinese has a translation of it.
func translate(format string, args ...any) string {
	words := make([]any, len(args))
	for i, arg := range args {
		words[i] = arg
		if twin := chinese[fmt.Sprint(arg)]; twin != "" {
			words[i] = twin
		}
	}
	return fmt.Sprintf(cmp.Or(chinese[format], format), words...)
}
