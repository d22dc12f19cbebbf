#!/usr/bin/env bash
# The project's own rules, clang-format and clang-tidy. Usage: tests/lint.sh BUILD_DIR (with
# compile_commands.json). Prints what is wrong and where; exit 1 when anything is.
set -uo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
build=${1:?usage: tests/lint.sh BUILD_DIR}
bad=0
complain() { echo "lint: $*"; bad=1; }
files() { git ls-files -- "$@"; }
# The library's sources: everything but the tests and the programs' main files.
library=$(files '*.c' '*.h' '*.inc' | grep -Ev '^tests/|(^|/)main\.c$')

# --- who may include whom ---
forbid() { # FOLDER PATTERN WHY
    local hits
    hits=$(files "$1/*.c" "$1/*.h" "$1/*.inc" | xargs -r grep -nE "^ *# *include *[\"<]($2)" || true)
    [ -z "$hits" ] || complain "$1 may not include $3:"$'\n'"$hits"
}
forbid core '(storage|gpu|worker|coordinator|tests)/' 'any other folder'
forbid storage '(gpu|worker|coordinator|tests)/' 'any folder but core'
forbid gpu '(storage|worker|coordinator|tests)/' 'any folder but core'
forbid worker '(coordinator|tests)/' 'the coordinator or the tests'
forbid coordinator '(gpu|worker|tests)/' 'gpu, worker or the tests'
only() { # HEADER ALLOWED-FILES-REGEX
    local hits
    hits=$(printf '%s\n' $library | grep -Ev "$2" | xargs -r grep -nE "# *include *<$1" || true)
    [ -z "$hits" ] || complain "<$1...> stands outside its place:"$'\n'"$hits"
}
only 'hiredis' '^storage/redis_talk\.c$'
only 'openssl' '^storage/(redis_link|s3_sign)\.c$'
only 'curl/' '^storage/s3_flight\.h$|^coordinator/http'
only 'sqlite3' '^coordinator/jobs\.c$'
only 'cuda' '\.cu$'
only 'dnnl' '^gpu/cpu'
only 'uv\.h' '^coordinator/(conductor|invoke)'
only 'criterion' '^tests/'
hits=$(files 'worker/*.c' 'worker/*.h' | xargs -r grep -niE '1f1b|gpipe|zero.?bubble|interleaved' || true)
[ -z "$hits" ] || complain "a schedule's name stands in the worker:"$'\n'"$hits"

# --- what library code may not call ---
hits=$(printf '%s\n' $library | xargs -r grep -nE '(^|[^_[:alnum:].>])(exit|sprintf|vsprintf|strcpy|strcat|strtol|strtoul|strtoll|strtoull|strtod|atoi|atof|rand|srand|time|gets)\(' |
    grep -vE '^[^:]+:[0-9]+: *(\*|//|/\*)' || true)
[ -z "$hits" ] || complain "library code calls what it may not:"$'\n'"$hits"

# --- sizes ---
for f in $(files '*.c' '*.h' '*.inc' '*.sh' | grep -v '^tests/'); do
    n=$(wc -l <"$f")
    case $f in *.h) limit=150 ;; *) limit=600 ;; esac
    [ "$n" -le "$limit" ] || grep -q "lint: long because" "$f" || complain "$f has $n lines (limit $limit)"
done
for f in core storage gpu worker coordinator deploy tests docs; do
    if [ ! -f "$f/README.md" ]; then
        complain "$f has no README.md"
    elif [ "$(wc -l <"$f/README.md")" -gt 40 ]; then
        complain "$f/README.md has over 40 lines"
    fi
done

# --- file names are unique, Markdown links lead somewhere ---
twice=$(files '*.c' '*.h' | grep -vE '(^|/)main\.c$' | sed 's|.*/||' | sort | uniq -d)
[ -z "$twice" ] || complain "file names that stand twice: $twice"
for f in $(files '*.md'); do
    for link in $(grep -oE '\]\([^)#: ]+' "$f" | cut -c3-); do
        [ -e "$(dirname "$f")/$link" ] || complain "$f links to $link, which is not there"
    done
done

# --- clang-format, clang-tidy ---
files '*.c' '*.h' '*.inc' | xargs -r clang-format --dry-run --Werror || complain "clang-format has wishes (clang-format -i FILE)"
if [ -f "$build/compile_commands.json" ]; then
    # Nearly all of the time goes into the analyzer's walks through each function: here it takes
    # up to 25,000 steps, in the long form its own 225,000.
    steps=()
    [ -n "${FUNCPIPE_LONG:-}" ] || steps=(--extra-arg=-Xclang --extra-arg=-analyzer-config
        --extra-arg=-Xclang --extra-arg=max-nodes=25000)
    # shellcheck disable=SC2046
    if ! files '*.c' | grep -Ev '^tests/' | xargs -r -n 4 -P "$(nproc)" clang-tidy --quiet "${steps[@]}" --extra-arg=-Wno-unused-command-line-argument --extra-arg=-Wno-unknown-warning-option -p "$build" >"$build/tidy.log" 2>"$build/tidy.err"; then
        grep -E 'warning:|error:' "$build/tidy.log" | sort -u | head -n 30
        complain "clang-tidy has complaints (whole text: $build/tidy.log)"
    fi
else
    complain "$build/compile_commands.json is missing: clang-tidy did not run"
fi
[ "$bad" = 0 ] && echo "lint: fine"
exit "$bad"
