// Package fencetest exists because a guard is only worth what it does on a real
// database: it tests all of them on PostgreSQL, MariaDB, SQLite, Redis and over
// HTTP, with writers that are stopped past their lease. It is a module of its own
// so that the drivers stay out of everybody else's.
//
//	go test ./...                           # 10 pauses for each guard
//	REDLOCK_STALE_PAUSES=1000 go test -run StaleWriters -parallel 12 -v ./...
//
// PostgreSQL is found on the PATH or under /usr/lib/postgresql, MariaDB and Redis
// on the PATH. Where one is missing its tests skip, loudly under -v;
// REDLOCK_REQUIRE_POSTGRES=1, REDLOCK_REQUIRE_MARIADB=1 and REDLOCK_REQUIRE_REDIS=1
// make them fail instead. The tests need Linux.
package fencetest
