package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
)

const completionUsage = `Usage: redlock completion bash|zsh|fish

Prints a script that completes command lines of redlock.

Examples:

  source <(redlock completion bash)                                        # in ~/.bashrc
  redlock completion zsh > "${fpath[1]}/_redlock"
  redlock completion fish > ~/.config/fish/completions/redlock.fish
`

// completion prints the script for a shell.
func completion(*flag.FlagSet) action {
	return func(_ context.Context, operands []string, stdout, stderr io.Writer) int {
		scripts := map[string]func(io.Writer, []completed){"bash": completeBash, "zsh": completeZsh, "fish": completeFish}
		script, found := scripts[operands[0]]
		if !found {
			fmt.Fprintln(stderr, "redlock completion: the SHELL is bash, zsh or fish")
			return exitUsage
		}
		script(stdout, completions())
		return exitOK
	}
}

// completed is a command as a shell completes it.
type completed struct {
	command
	flags []*flag.Flag
}

func completions() []completed {
	var all []completed
	for _, c := range commands() {
		flags := flag.NewFlagSet(c.name, flag.ContinueOnError)
		c.setup(flags)
		done := completed{command: c}
		flags.VisitAll(func(f *flag.Flag) { done.flags = append(done.flags, f) })
		all = append(all, done)
	}
	return all
}

// words returns what may stand behind the command besides values.
func (c completed) words() string {
	var words []string
	for _, f := range c.flags {
		words = append(words, dashed(f.Name))
	}
	if c.name == "completion" {
		words = append(words, "bash", "zsh", "fish")
	}
	return strings.Join(words, " ")
}

// valued returns the flags behind which a value stands.
func valued(all []completed) []string {
	var found []string
	for _, c := range all {
		for _, f := range c.flags {
			b, ok := f.Value.(interface{ IsBoolFlag() bool })
			if name := dashed(f.Name); !(ok && b.IsBoolFlag()) && !slices.Contains(found, name) {
				found = append(found, name)
			}
		}
	}
	return found
}

func names(all []completed) string {
	words := make([]string, len(all))
	for i, c := range all {
		words[i] = c.name
	}
	return strings.Join(words, " ")
}

func completeBash(w io.Writer, all []completed) {
	fmt.Fprintf(w, `# bash completion for redlock
_redlock() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} words i
  COMPREPLY=()
  if ((COMP_CWORD == 1)); then
    COMPREPLY=($(compgen -W "%s help" -- "$cur"))
    return
  fi
  if [[ ${COMP_WORDS[1]} == run ]]; then
    for ((i = 2; i < COMP_CWORD; i++)); do # behind a --, the command completes itself
      if [[ ${COMP_WORDS[i]} == -- ]]; then
        if declare -F _command_offset >/dev/null; then
          _command_offset $((i + 1))
        else
          COMPREPLY=($(compgen -A command -A file -- "$cur"))
        fi
        return
      fi
    done
  fi
  case $prev in
    --endpoints)
      COMPREPLY=($(compgen -A file -- "$cur"))
      return
      ;;
    %[2]s) return ;; # a value of one's own
  esac
  case ${COMP_WORDS[1]} in
    help) words="%[1]s" ;;
`, names(all), strings.Join(valued(all), "|"))
	for _, c := range all {
		fmt.Fprintf(w, "    %s) words=\"%s\" ;;\n", c.name, c.words())
	}
	fmt.Fprint(w, `  esac
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
}
complete -F _redlock redlock
`)
}

func completeZsh(w io.Writer, all []completed) {
	fmt.Fprint(w, "#compdef redlock\n# zsh completion for redlock\n_redlock() {\n  local -a known\n  known=(\n")
	for _, c := range all {
		fmt.Fprintf(w, "    '%s:%s'\n", c.name, c.summary)
	}
	fmt.Fprint(w, `    'help:examples and the flags of a command'
  )
  if ((CURRENT == 2)); then
    _describe command known
    return
  fi
  local command=$words[2]
  shift words
  ((CURRENT--))
  local dashes=${words[(i)--]}
  if [[ $command == run ]] && ((dashes < CURRENT)); then # behind a --, the command completes itself
    shift $dashes words
    ((CURRENT -= dashes))
    _normal
    return
  fi
  case $command in
    help) _describe command known ;;
`)
	for _, c := range all {
		fmt.Fprintf(w, "    %s)\n      _arguments", c.name)
		for _, f := range c.flags {
			value, text := flag.UnquoteUsage(f)
			first, _, _ := strings.Cut(text, "\n")
			first = strings.NewReplacer("'", "", "[", "(", "]", ")", ":", "").Replace(first)
			repeat, takes := "", ""
			if f.Name == "e" {
				repeat = "*"
			}
			if value != "" {
				takes = ":" + value + ":"
			}
			if value == "file" {
				takes += "_files"
			}
			fmt.Fprintf(w, " \\\n        '%s%s[%s]%s'", repeat, dashed(f.Name), first, takes)
		}
		switch {
		case c.name == "completion":
			fmt.Fprint(w, " \\\n        '1:shell:(bash zsh fish)'")
		case c.operands != nil, c.runs:
			fmt.Fprint(w, " \\\n        '1:name:'")
		}
		fmt.Fprint(w, "\n      ;;\n")
	}
	fmt.Fprint(w, `  esac
}
if [[ $funcstack[1] == _redlock ]]; then
  _redlock "$@"
else
  compdef _redlock redlock
fi
`)
}

func completeFish(w io.Writer, all []completed) {
	fmt.Fprint(w, "# fish completion for redlock\ncomplete -c redlock -f\n")
	quote := func(s string) string {
		return "'" + strings.ReplaceAll(strings.ReplaceAll(s, `\`, `\\`), "'", `\'`) + "'"
	}
	for _, c := range all {
		fmt.Fprintf(w, "complete -c redlock -n __fish_use_subcommand -a %s -d %s\n", c.name, quote(c.summary))
		for _, f := range c.flags {
			value, text := flag.UnquoteUsage(f)
			first, _, _ := strings.Cut(text, "\n")
			long := "-l " + f.Name
			if len(f.Name) == 1 {
				long = "-s " + f.Name
			}
			switch value {
			case "":
			case "file":
				long += " -r -F"
			default:
				long += " -x"
			}
			fmt.Fprintf(w, "complete -c redlock -n '__fish_seen_subcommand_from %s' %s -d %s\n", c.name, long, quote(first))
		}
	}
	fmt.Fprintf(w, "complete -c redlock -n __fish_use_subcommand -a help -d %s\n", quote("examples and the flags of a command"))
	fmt.Fprintf(w, "complete -c redlock -n '__fish_seen_subcommand_from help' -a %s\n", quote(names(all)))
	fmt.Fprint(w, `complete -c redlock -n '__fish_seen_subcommand_from completion' -a 'bash zsh fish'
function __redlock_behind_dashes # the command that it runs completes itself
  set -l words (commandline -opc) (commandline -ct)
  set -e words[1..(contains -i -- -- $words)]
  complete -C (string join ' ' -- $words)
end
complete -c redlock -n '__fish_seen_subcommand_from run; and contains -- -- (commandline -opc)' -a '(__redlock_behind_dashes)'
`)
}
