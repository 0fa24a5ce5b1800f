package main

import (
	"flag"
	"os"
	"strings"
)

const endpointsVariable = "REDLOCK_ENDPOINTS"

// endpointsFlag adds the flag -e to flags. The function that it returns gives,
// after parsing, the endpoints of the flags or, when there is none, of the
// environment; none at all if that is empty. Whether they are good is for
// redlock.Open to say: its errors show no password.
func endpointsFlag(flags *flag.FlagSet) func() []string {
	var endpoints []string
	flags.Func("e", "`endpoint` of an instance, once for each: a redis://, rediss:// or unix:// URL, or host:port;\n"+
		"without any, the comma-separated list in "+endpointsVariable, func(s string) error {
		endpoints = append(endpoints, s)
		return nil // an error here would be printed with s
	})
	return func() []string {
		list := os.Getenv(endpointsVariable)
		if len(endpoints) > 0 || list == "" {
			return endpoints
		}
		return strings.Split(list, ",")
	}
}
