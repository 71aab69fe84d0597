#!/.casebook/bash -p
# Stands in for every command of a script under analysis: writes down how it was called and does nothing
# else. Privileged mode (-p) keeps the script's functions and start-up files out of it.
if [[ ${BASH_SOURCE[0]} != "$0" ]]; then return 0; fi
LC_ALL=C
name=${0##*/}
stdin=
case $name in
  bash | sh | dash | zsh | ksh | ssh | cat | tee | docker | podman | kubectl)
    if [[ ! -t 0 ]]; then IFS= read -r -d '' -n 262144 stdin; fi ;;
esac
mapfile -d '' -t environment < /proc/self/environ
record="$(($# + 1)):${#environment[@]}:"
for word in "$0" "$@" "${environment[@]}" "$stdin"; do record+="${#word}:$word"; done
record=${record//$'\1'/$'\1'a}
record=${record//$'\n'/$'\1'n}
# Pieces small enough for a pipe to keep each whole, however many commands write at once.
for ((i = 0; i < ${#record}; i += 3000)); do
  printf '%d %d %d %s' "$BASHPID" "$((i + 3000 < ${#record}))" "${#record}" "${record:i:3000}"$'\2'
done >&FD 2> /dev/null
case $name in
  bash | sh | dash | zsh | ksh) exec /.casebook/bash "$@" <<< "$stdin" ;;
  cat) if (($# == 0)) || [[ $1 == - ]]; then printf '%s' "$stdin"; fi ;;
  tee) printf '%s' "$stdin"; for file; do [[ $file == -* ]] || printf '%s' "$stdin" > "$file"; done ;;
  dirname) d=${1%/*}; [[ $1 == */* ]] || d=.; printf '%s\n' "${d:-/}" ;;
  basename) b=${1##*/}; printf '%s\n' "${b%"${2-}"}" ;;
  seq) a=1 b=$1; (($# > 1)) && a=$1 b=$2; for ((n = a; n <= b && n - a < 10000; n++)); do printf '%d\n' "$n"; done ;;
  false) exit 1 ;;
esac
exit 0
