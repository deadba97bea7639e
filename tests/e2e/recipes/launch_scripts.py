#!/usr/bin/env python3
# launch_scripts.py FOLDER [SCRIPTS] - the reader of launch scripts against bash.
#
# Every script is read, and executed by bash with an empty environment and programs that only record
# their arguments. The words that train.py gets must be those that the reader gives; a word that it
# gives as unknown may be any, and is counted. The scripts are single constructs, sequences of
# constructs drawn at random, and mutations of their text and hostile texts, which must end soon and
# without an exception; with INVAR_TEST_FULL=1 more of them. With SCRIPTS, a folder of launch
# scripts, the test compares all scripts there instead, and bash gets the arguments and variables
# without which a script ends at once; if the user is root, bash has no network and runs as another
# user without rights.
# SPDX-License-Identifier: Apache-2.0
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import time

FOLDER = pathlib.Path(sys.argv[1]).resolve()
FULL = bool(os.environ.get("INVAR_TEST_FULL"))
SOURCES = pathlib.Path(__file__).resolve().parents[3] / "engine/config/miles_import"
FILES = ("shell_parser.py", "shell_values.py", "shell_flow.py", "launch_flags.py")
reader = {"__name__": "reader"}
exec(compile("".join((SOURCES / name).read_text() for name in FILES), "reader", "exec"), reader)
sys.setrecursionlimit(20000)

BASH = shutil.which("bash")
RECORDED = "python python3 torchrun ray"
SILENT = ("pip pip3 pkill pgrep killall sleep nvidia-smi rm rmdir mkdir cp mv ln touch tee chmod "
          "chown git curl wget ssh scp rsync apt apt-get conda hf huggingface-cli docker sudo "
          "hostname date lsof free ps ip ulimit srun sbatch scancel scontrol awk sed find xargs "
          "cmd uv kill env timeout setsid nohup bash sh jq flock mktemp tail")
SAFE = "dirname basename realpath readlink cat wc grep cut tr seq head expr uname nproc true"

# Constructs between LR=1, N=2, A_ARGS=(--a 1 --b) and the start of train.py with all three. A line
# that begins with a bar continues the line before it.
CONSTRUCTS = r"""
if cmd; then source ./other.sh; fi
cmd && source ./other.sh
[ -f other.sh ] && . ./other.sh
if [ 1 = 1 ]; then source ./other.sh; fi
case x in x) source ./other.sh ;; esac
f() { source ./other.sh; }; f
f() { source ./other.sh; }
source ./other.sh | cat
source ./none.sh
LR=5 source ./other.sh
source "$(dirname "$0")/other.sh"
D="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" &>/dev/null && pwd)"; source "${D}/other.sh"
LR=5 cmd
LR=5 true
LR=5 eval 'N=$LR'
LR=5 eval 'LR=6'
f() { N=$LR; }; LR=5 f
f() { LR=6; }; LR=5 f
LR=5 export N=6
LR=5 export LR
LR=5 N=6
LR=5 read -r N <<<7
IFS=, read -r LR N <<<"8,9"
LR=5 builtin export N=$LR
LR=5 | cat
echo 5 | read -r LR
cmd | while read -r x; do LR=$x; done
printf '1\n2\n' | while read -r x; do A_ARGS+=(--c "$x"); done
{ LR=5; N=6; } | cat
true | LR=5
LR=5 |& cat
! LR=5 | cat
LR=5 & wait
{ LR=5; } & wait
f() { LR=5; }; f & wait
(LR=5) & wait
LR=5 &
N=7 & LR=6; wait
readonly LR=5
readonly LR; LR=6
readonly LR
declare -r N=9; N=10
readonly A_ARGS; A_ARGS+=(--c)
f() { local -r LR=7; }; f
builtin export LR=5
builtin declare LR=5
builtin readonly LR=5
builtin eval LR=5
builtin read -r LR <<<5
builtin printf -v LR 5
builtin source ./other.sh
builtin unset LR
command export LR=5
command eval LR=5
command -v LR=5
command cmd LR=5
trap 'LR=5' EXIT
trap 'LR=5' DEBUG
trap 'LR=5' ERR; false
trap 'LR=5' USR1; builtin kill -USR1 $$; true
f() { LR=5; }; trap f DEBUG
f() { LR=5; }; trap f ERR; false
trap 'LR=5' RETURN; f() { :; }; f
trap 'echo' EXIT INT TERM
trap - DEBUG
LR=${LR:-5}
LR=${NOPE:-5}
LR=${NOPE-5}
LR=${NOPE:=5}; N=$NOPE
LR=${NOPE:-$(cmd)}
LR=${LR:+7}
LR=${NOPE:+7}
unset LR; LR=${LR:-8}
unset LR N
LR=$((1 + 2))
LR=$((LR + N * 3))
LR=$((7 / 2)); N=$((-7 / 2))
N=$((-7 % 3))
N=$((LR++)); true
((LR = 5))
((LR++)); ((N += 3))
let LR=5
let "N = LR + 1"
: $((LR = 9))
X='LR=5'; : $((X))
LR=$(echo 5)
LR=`echo 5`
LR=$(LR=6; echo 7)
LR="$(echo "a b" # c)
|)"
cmd || LR=5
cmd && LR=5
false || LR=5
true && LR=5
true || LR=5
false && LR=5 || LR=6
! true && LR=5
if cmd; then LR=5; else LR=6; fi
if true; then LR=5; else LR=6; fi
if [ "$LR" = 1 ]; then N=5; elif cmd; then N=6; else N=7; fi
if [ -z "$NOPE" ]; then LR=5; fi
if [[ $LR == 1 && $N == 2 ]]; then LR=5; fi
if [[ $LR -eq 1 ]]; then LR=5; fi
if [[ $LR != 1 ]]; then LR=5; fi
if [[ ! $LR == 2 ]]; then LR=5; fi
[[ $LR == [0-9] ]] && LR=5
[[ a < b ]] && LR=5
[[ $LR =~ ^[0-9]+$ ]] && LR=5
[[ LR=5 -eq 5 ]]; true
test "$N" -gt 1 && LR=5
[ "$N" -gt 10 ] || LR=5
if cmd; then exit 1; fi; LR=5
if [ "$N" = 2 ]; then A_ARGS+=(--c 3); fi
if cmd; then A_ARGS+=(--c 3); else A_ARGS+=(--d 4); fi
if cmd; then A_ARGS=(--c 3); fi
for x in 1 2 3; do A_ARGS+=(--c "$x"); done
for x in 1 2 3; do [ "$x" = 2 ] && continue; A_ARGS+=(--c "$x"); done
for x in 1 2 3; do [ "$x" = 2 ] && break; LR=$x; done
for x in $(cmd); do LR=$x; done
for x in "${A_ARGS[@]}"; do LR=$x; done
for ((i = 0; i < 3; i++)); do LR=$i; done
for i in 1 2; do for j in 3 4; do [ $j = 4 ] && break 2; LR=$i$j; done; done
while cmd; do LR=5; break; done
while false; do LR=5; done
until true; do LR=5; done
i=0; while [ $i -lt 3 ]; do i=$((i + 1)); LR=$i; done
while read -r x; do LR=$x; done <<<5
case $LR in 1) LR=5 ;; *) LR=6 ;; esac
case $LR in 2 | 3) LR=5 ;; esac
case $LR in ?) LR=5 ;; esac
case $LR in [0-9]) LR=5 ;; *) LR=6 ;; esac
case $LR in 1) LR=5 ;& 7) N=9 ;; esac
case $NOPE in a) LR=5 ;; '') LR=6 ;; esac
f() { LR=5; }; f
f() { local LR=5; N=$LR; }; f
f() { local LR; LR=5; }; f
f() { LR=$1; N=$#; }; f 7 8
f() { A_ARGS+=("$@"); }; f --c 'x y'
f() { LR=5; return 0; LR=6; }; f
f() { if cmd; then return; fi; LR=6; }; f
f() { [ "$LR" = 1 ] || return 1; LR=6; }; f && N=8
f() { cmd && local LR; LR=6; }; f
f() { declare N=9; LR=$N; }; f
f() { g; }; g() { LR=9; }; f
f() { f2() { LR=5; }; }; f; f2
function f { LR=5; }; f
cmd && f() { LR=5; }; f
f() { shift; LR=$1; }; f 1 2
f() { unset N; }; f
set -- 7 8; LR=$1; N=$#
set -- "${A_ARGS[@]}"; LR=$2
set -f; set -u; LR=5
IFS=,; X=1,2; A_ARGS=($X)
X='1 2'; A_ARGS=(--c $X "$X")
X='--c 3'; A_ARGS+=($X)
X=; A_ARGS+=($X --c "$X")
A_ARGS=(--c 'a b'); A_ARGS=(${A_ARGS[@]})
A_ARGS=("${A_ARGS[@]}" --c)
A_ARGS=(--z "${A_ARGS[@]:0:1}")
A_ARGS[1]=5
A_ARGS=5
A_ARGS+=5
LR+=5; N+=
B=(x y); LR=${B[1]}; N=${#B[@]}
B=([2]=x [0]=y); A_ARGS+=("${B[@]}")
declare -A M=([a]=5); LR=${M[a]}
declare -i N; N=3+4
declare -u LR=abc
declare -n R=LR; R=5
declare LR=5 N=6
export LR=5 N
export "LR=5"
X=LR; export $X=5
X=LR; declare "$X=5"
X=LR; printf -v "$X" 5
X=N; N=${!X}; LR=${!X:-3}
X=LR; eval "$X=5"
eval "LR=5; N=6"
eval "$(cmd)"
mapfile -t A_ARGS <<<"--c"
read -ra A_ARGS <<<"--c 5"
read -r <<<5; LR=$REPLY
getopts ab LR -a
X=a/b.c; LR=${X##*/} N=${X%.*}
X=a/b.c; LR=${X#*/} N=${X%%/*}
X=abc; LR=${#X} N=${X:1:1}
X=abc; LR=${X/b/d} N=${X^^}
LR='a  b' N="c<TAB>d"
LR=a\ b N=\"x\"
LR=$'a\nb'
LR="a
|b"
LR=~/x N=a:~/y
LR=*.sh
LR={a,b}
A_ARGS+=({c,d} {8})
A_ARGS+=(*.none ?)
A_ARGS+=(--c=${NOPE:-1} --d="$(cmd)")
A_ARGS+=(--c "$NOPE" $NOPE "${NOPE[@]}")
cat <<END
|LR=5 $LR ${NOPE2:=7}
|END
cat <<'END' >/dev/null
|LR=5
|END
cat <<-END; LR=6
|<TAB>x
|<TAB>END
LR=5 >/none/none
{ LR=5; } >/none/none
{ LR=5; } 2>/dev/null
LR=5 2>&1
exec 3>&1; LR=5
exec {fd}>/dev/null; LR=${fd:-7}
exec </dev/null; LR=5
( LR=5 )
{ LR=5; }
( exit 1 ) || LR=5
set -e; cmd; LR=5
alias LR=5; shopt -s expand_aliases
shopt -s lastpipe; echo 5 | read -r LR
shopt -s nullglob; LR=5
POSIXLY_CORRECT=1; LR=5 :
PS4='${LR:=5}'; set -x
cmd="LR=5"; $cmd
X=export; $X LR=5
"ex"port LR=5
\export LR=5
coproc LR=5; LR=6
time LR=5
LR=5 # comment
# LR=5
LR=5;N=6
if cmd
|then LR=5
|fi
LR=1\
2
L\
R=5
select LR in 1 2; do break; done <<<1
LR=$RANDOM N=$LINENO
LR=${BASH_VERSION:+5}
HOME=/x; LR=$HOME N=~
PWD=5; cd .; LR=$PWD
hash -r; type LR; LR=5
enable -n export; export LR=5
[ "$LR" -eq 1 -a "$N" -eq 2 ] && LR=5
[ LR = 1 ] || LR=5
LR=5 command true
f() { return 3; }; f; LR=$?
python3() { command python3 "$@" --c 9; }
run() { "$@"; }; run python3 -m none
exec 2>/dev/null; LR=6
wait; LR=5
let A_ARGS=5; true
: ${LR:=9} ${N:=${NOPE3:=4}}
: "${A_ARGS[LR=7]}"
while :; do LR=5; cmd && break; break; done
unset -f f; unset A_ARGS; A_ARGS=(--c)
unset 'A_ARGS[1]'
LR=$(cat <<'END'
|)
|END
|); N=5
X="a'b"; LR="${X}c" N='d"e'
LR="${NOPE:-"q r"}" N=${NOPE:-'q r'}
A_ARGS+=(${NOPE:-x y} "${NOPE:-x y}")
A_ARGS+=(--c # 3
|   # --d
|   --e)
printf -v LR '%s' 5
printf '%s' "$LR" >/dev/null; N=6
LR=${1:-5} N=${2-6}
while [ $# -gt 0 ]; do LR=$1; shift; done
if [ "${1:-x}" = x ]; then LR=5; fi
[ -n "${NOPE:-}" ] && LR=5
LR=$NOPE
LR=${LR/1/2}
for x; do LR=$x; done
for x in a; do :; done; LR=$x
f() { for x in 1 2; do return; done; LR=9; }; f
if ! cmd; then LR=5; fi
{ cmd; LR=5; } || LR=6
cmd; [ $? = 0 ] && LR=5
[ "$LR" = 1 ] && { N=7; cmd; } || N=8
A_ARGS+=(--lr 7)
A_ARGS+=($(cmd))
A_ARGS+=($NOPE --d 4)
f() { LR=2; }; f >none/none
f() { LR=2; }; f >&7
f() { LR=2; }; f >&7-
f() { LR=2; } 2>&9; f
eval LR=2 >none/none
export LR=2 </none/none
source ./other.sh >none/none
f() { return >none/none; LR=2; }; f
for x in 1; do break >none/none; LR=2; done
{ LR=2; } 2>&9
{ LR=2; } 99999>/dev/null
{ { LR=2; } >&2; } 2>&-
exec 2>&-; { LR=2; } >&2
exec {X[0]}>/dev/null; LR=2
cat <<END
|abc\
|END
|LR=2
|END
cat <<-END
|<TAB>abc\
|<TAB>END
|LR=2
|<TAB>END
cat <<END
|abc\\
|END
|LR=2
cat <<'END'
|abc\
|END
|LR=2
cat <<END
|abc
|EN\
|D
|LR=2
cat <<EN\
|D
|abc
|END
|LR=2
x='LR=2'; y=x; : $((y))
x='LR=2'; let x
x='LR=2'; declare -i q=x
x='LR=2'; declare -i q; q=x
x='LR=2'; declare -i q; : ${q:=x}
x='LR=2'; declare -ia q; q=(x)
x='LR=2'; f() { local -i q=x; }; f
x='LR=2'; RANDOM=x
x='LR=2'; A=([x]=3)
x='LR=2'; declare A[x]=3
x='LR=2'; read 'A[x]' <<<3
x='LR=2'; printf -v 'A[x]' 3
x='LR=2'; unset 'A_ARGS[x]'
x='LR=2'; : ${!A_ARGS[x]}
x='LR=2'; if cmd; then y=x; fi; : $((y))
x='LR=2'; y=${x%z}; : $((y))
x='LR=2'; set -- x; : $(($1))
x=$(echo LR=2); : $((x))
declare -i q='LR=2'
[ -v 'A[LR=2]' ]
test -v 'A_ARGS[LR=2]'
[[ -v A[LR=2] ]]
x='A[LR=2]'; : ${!x}
x='A[LR=2]'; [ -v $x ]
x='$((LR=2))'; : "${x@P}"
trap 'echo hi
|unset LR' DEBUG
true() { LR=9; }; trap true ERR; false
trap true ERR; true() { LR=9; }; false
trap 'echo' DEBUG; function echo { LR=9; }; :
source true
test "$LR" = 1 && N=5
group() { LR=5; }; group
if cmd; then LR=5; return; fi
return; LR=5
LR=`echo "5 $N" \`echo "6"\``
printf -vLR 5
f() { LR=5; }; mapfile -tC f -c1 X <<<x
exec $NOPE; LR=5
export LR=5 N=$LR
f() { local N=7 LR=$N; A_ARGS+=(--c "$LR"); }; f
readonly LR=5 N=$LR
X=LR; export $X=7 N=$LR
local LR=5
eval 'local LR=5'
eval -- LR=5
export N={a,b}
declare N={1,2}
A_ARGS+=(${LR:+})
A_ARGS+=(${NOPE:-~})
case x in x) ;; ${NOPE:=x}) ;; esac; N=${NOPE-4}
LR=${EUID:-7} N=${PS4:-7}
LR=${BASHOPTS:-7}
FUNCNEST=1; f() { g; }; g() { LR=5; }; f
cd sub; source "$(dirname "$0")/more.sh"
D=$(dirname "$0"); cd sub; source "$D/more.sh"
D=$(cd "$(dirname "$0")" && pwd); cd sub; source "$D/more.sh"
cd sub; D=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd); source $D/more.sh
{ : $((1 / 0)); LR=5; }
: $((1 / 0)); LR=5
LR=$((N / 0)); N=5
f() { : $((N % NOPE)); LR=5; }; f
f() { local LR=7; : $((1 / 0)); exit; }; f
f() { : $((1 / 0)); exit; }; LR=5 f
{ : ${A_ARGS[1 / 0]}; LR=5; }
{ (($((1 / 0)))); LR=5; }
{ ((1 / 0)); LR=5; }
X=1a; if true; then : $((X)); LR=5; fi
X='a b'; { : ${!X}; LR=5; }
{ : ${!NOPE}; LR=5; }
{ A_ARGS[-9]=3; LR=5; }
{ declare -i q=1/0; LR=5; }
eval ': $((1 / 0)); LR=5'; N=6
( : $((1 / 0)); LR=5 ); N=6
shopt -s failglob; { : zz*; LR=5; }
"""

# Constructs that start train.py themselves, between the same assignments and the end.
STARTS = r"""
P=train.py; if cmd; then P=train_async.py; fi; python3 $P "${A_ARGS[@]}" --lr 2
bash -c "python3 train.py ${A_ARGS[*]} --lr 2"
bash <<END
|python3 train.py ${A_ARGS[*]} --lr 2
|END
python3 -m train "${A_ARGS[@]}" --lr 2
X=`python3 train.py "${A_ARGS[@]}" --lr 2`
P=$(command -v python3); nohup $P train.py "${A_ARGS[@]}" --lr 2
echo --a 2 | xargs python3 train.py "${A_ARGS[@]}"
B_ARGS=(--a 3); python3 $(echo train.py) "${A_ARGS[@]}"
trap 'python3 train.py --a 5' EXIT; python3 train.py "${A_ARGS[@]}"
f() { python3 train.py --a 5; }; trap f EXIT; python3 train.py "${A_ARGS[@]}"
bash -c 'python3 train.py --a 5'; python3 train.py "${A_ARGS[@]}"
"""
OTHER = "LR=50\nN=${N}0\nA_ARGS+=(--other)\n"
HEAD = "LR=1\nN=2\nA_ARGS=(--a 1 --b)\n"
START = 'python3 train.py --lr "$LR" --n "${N-unset}" "${A_ARGS[@]}" --end $N $LR\n'


def constructs(text):
    """The constructs: a line each, with the lines after it that begin with a bar."""
    out = []
    for line in text.replace("<TAB>", "\t").strip("\n").split("\n"):
        if line.startswith("|"):
            out[-1] += "\n" + line[1:]
        else:
            out.append(line)
    return out


def programs(tools, real):
    """Makes a folder with programs that record their arguments, or do nothing; `real` are not."""
    tools.mkdir(parents=True)
    for name in SILENT.split():
        (tools / name).write_text("#!/bin/bash\nexit 0\n")
    for name in RECORDED.split():
        (tools / name).write_text(
            f"#!/bin/bash\nprintf '%s\\0' \"$@\" $'\\n' >>{FOLDER}/record\n")
    for path in tools.iterdir():
        path.chmod(0o755)
    for name in f"{SAFE} {real}".split():
        (tools / name).unlink(missing_ok=True)
        if shutil.which(name):
            (tools / name).symlink_to(shutil.which(name))
    (FOLDER / "env").write_text("enable -n kill\nunset BASH_ENV\n")


def needed(said):
    """The variable or the number of the argument without which bash has ended a script."""
    found = re.search(r": \$?(\w+): (?:unbound variable|parameter )|\b([A-Z_]+) is not set", said)
    return found and (found.group(1) or found.group(2))


def by_bash(path, foreign=False):
    """The arguments of each start of train.py by bash."""
    record = FOLDER / "record"
    guard, given, arguments = [], {}, []
    if foreign and os.getuid() == 0:
        guard = [shutil.which("unshare"), "-n", shutil.which("setpriv"), "--reuid", "65534",
                 "--regid", "65534", "--clear-groups"]
    names = {"PATH": f"{FOLDER}/tools", **({"BASH_ENV": f"{FOLDER}/env"} if foreign else {})}
    while True:
        record.write_bytes(b"")
        record.chmod(0o666)
        said = b""
        try:
            said = subprocess.run([*guard, BASH, path.name, *arguments], cwd=path.parent,
                                  env={**names, **given}, timeout=5, stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  start_new_session=True).stdout
        except subprocess.TimeoutExpired:
            pass
        starts = []
        for text in record.read_bytes().decode("utf-8", "replace").split("\n\0")[:-1]:
            words = text.split("\0")[:-1]
            at = [i for i, w in enumerate(words) if os.path.basename(w) in reader["TRAIN"] or
                  words[max(i - 1, 0):i + 1] == ["-m", "train"]]
            if at:
                starts.append(words[at[0] + 1:])
        name = needed(said.decode("utf-8", "replace"))
        if starts or not foreign or not name or name in given or len(arguments) > 20:
            return starts
        if name.isdigit():
            arguments.append("given")
        else:
            given[name] = "given"


def by_reader(path):
    """The words of the reader, or None if it refuses the script."""
    kept = os.getcwd()
    os.chdir(path.parent)
    try:
        shell = reader["Shell"](path.name)
        return reader["words_of"](shell, reader["decode"](path.read_bytes(), path.name))[0]
    except (reader["Refused"], RecursionError):
        return None
    finally:
        os.chdir(kept)


def fits(fields, words):
    """True if the words may be those of the fields."""
    places = {0}  # numbers of words that the fields so far may have taken
    at = 0
    while at < len(fields):
        field = fields[at]
        if field.maybe:
            texts, unknown = set(), False
            while at < len(fields) and fields[at].maybe:
                texts.add(fields[at].text)
                unknown |= bool(fields[at].why)
                at += 1
            more = set(places)
            for place in places:
                while place < len(words) and (unknown or words[place] in texts):
                    place += 1
                    more.add(place)
            places = more
            continue
        at += 1
        if field.why and field.many:
            places = set(range(min(places), len(words) + 1)) if places else set()
        else:
            places = {p + 1 for p in places if p < len(words) and (
                words[p].startswith(field.text) if field.why else words[p] == field.text)}
    return len(words) in places


def certain(fields):
    """The flags whose values are known."""
    out = {}
    for item, spoils in reader["flags_of"](fields):
        if spoils:
            out = {}
        if isinstance(item, reader["Flag"]):
            if item.why:
                out.pop(item.name, None)
            else:
                out[item.name] = item.values
    return out


def compare(path, counts, foreign=False):
    """Reads one script in both ways; returns what is wrong."""
    begin = time.monotonic()
    fields = by_reader(path)
    if time.monotonic() - begin > 10:
        return "the reader takes longer than 10 s"
    starts = by_bash(path, foreign)
    counts["scripts"] += 1
    if fields is None:
        counts["refused"] += 1
        return None
    if not starts:
        counts["not started by bash"] += 1
        return None
    plain = [reader["Field"](None, None, False, False, "", "", 0)._replace(text=w, raw=w)
             for w in starts[0]]
    known, real = certain(fields), certain(plain)
    counts["flags of bash"] += len(real)
    counts["known"] += sum(known.get(name) == real[name] for name in real)
    counts["unknown"] += sum(name not in known for name in real)
    for words in starts:
        real = certain([plain[0]._replace(text=w, raw=w) for w in words] if plain else [])
        wrong = [name for name in known if known[name] != real.get(name)]
        if wrong:
            counts["wrong"] += len(wrong)
            return f"{wrong[0]}: {known[wrong[0]]}, by bash {real.get(wrong[0])}"
        if not fits(fields, words) and not (
                fields and fields[-1].why == reader["NO_START"].why):
            counts["wrong"] += 1
            return f"the words do not fit:\n  {[(w.text, w.why) for w in fields]}\n  {words}"
    return None


def mutate(text, chance):
    lines = text.split("\n")
    for _ in range(chance.randrange(1, 4)):
        at = chance.randrange(len(text) + 1)
        kind = chance.randrange(4)
        if kind == 0:
            text = text[:at] + text[at + chance.randrange(1, 8):]
        elif kind == 1:
            text = text[:at] + chance.choice("'\"`$(){}[];&|<>\\\n#=~*! \0") + text[at:]
        elif kind == 2:
            text = text[:at] + chance.choice(lines) + text[at:]
        else:
            text = text[:at] * chance.choice((1, 1, 9)) + text[at:]
    return text


def generated(counts):
    """Compares constructs and sequences of them; reads mutations. Returns the failures."""
    failures, pool, chance = [], constructs(CONSTRUCTS), random.Random(1)
    (FOLDER / "sub").mkdir()
    for name in ("other.sh", "true", "sub/more.sh"):
        (FOLDER / name).write_text(OTHER)
    (FOLDER / "more.sh").write_text("LR=60\n")
    path = FOLDER / "run.sh"
    sequences = [[one] for one in pool] + [
        chance.sample(pool, chance.randrange(2, 6)) for _ in range(1500 if FULL else 150)]
    sequences += [[f"{before}\n{one}\n{after}"] for one in pool for before, after in chance.sample((
        ("if cmd; then", "fi"), ("if true; then", "fi"), ("for r in 1 2; do", "done"),
        ("h() {", "}\nh"), ("h() {", "}\nh | cat"), ("(", ")"), ("{", "} | cat"),
        ("{", "} &\nwait"),
        ("while cmd; do", "break; done"), ("h() {", "}\nLR=3 h"), ("h() { local LR=8 N", "}\nh 1"),
        ("case $N in 2)", ";; esac"), ("until ! cmd; do", "break; done")), 6 if FULL else 1)]
    for text in [*("\n".join(s) + "\n" + START for s in sequences), *constructs(STARTS)]:
        path.write_text(HEAD + text + "\n")
        wrong = compare(path, counts)
        if wrong:
            failures.append(f"{path.read_text()}{wrong}\n")
    for _ in range(10000 if FULL else 500):
        text = mutate(HEAD + "\n".join(chance.sample(pool, 5)) + "\n" + START, chance)
        path.write_text(text)
        begin = time.monotonic()
        try:
            by_reader(path)
        except Exception as error:  # noqa: BLE001
            failures.append(f"{text}{type(error).__name__}: {error}\n")
        if time.monotonic() - begin > 10:
            failures.append(f"{text}takes longer than 10 s\n")
        counts["mutations read"] += 1
    return failures


def hostile():
    """Scripts that double, nest or call without end; each must end soon. Returns the failures."""
    path, failures = FOLDER / "run.sh", []
    for text in ("X=aaaa\n" + "X=$X$X\n" * 70, "( " * 70, "$(" * 5000, "${a:-" * 5000,
                 "A_ARGS=(a)\n" + "A_ARGS=(${A_ARGS[@]} ${A_ARGS[@]})\n" * 70,
                 "if a; then b\n" + "elif a; then b\n" * 9999 + "fi\n", "f() { f; f; }\nf\n",
                 "f() { trap f EXIT; trap f 0; }\nf\n", "x=1a\n" + "".join(
                     f"a{i}=$a{i}a{i}\n: $((x))\n" for i in range(20000)),
                 "while a; do " * 30 + "A_ARGS+=(a); " + "done; " * 30 + "\n", "X=1", "'",
                 "a\0"):
        path.write_text(text)
        begin = time.monotonic()
        try:
            if by_reader(path) is not None and "--a" not in text:
                failures.append(f"not refused: {text[:40]}")
        except Exception as error:  # noqa: BLE001
            failures.append(f"{text[:40]}: {type(error).__name__}: {error}")
        if time.monotonic() - begin > 30:
            failures.append(f"takes longer than 30 s: {text[:40]}")
    return failures


def foreign(folder, counts):
    failures = []
    for path in sorted(folder.rglob("*.sh")):
        if b"train" in path.read_bytes():
            wrong = compare(path, counts, True)
            if wrong:
                failures.append(f"{path}: {wrong}")
    return failures


def main():
    shutil.rmtree(FOLDER, ignore_errors=True)
    scripts = sys.argv[2:]
    programs(FOLDER / "tools", "" if scripts else "bash nohup xargs")
    counts = dict.fromkeys(("scripts", "refused", "not started by bash", "flags of bash", "known",
                            "unknown", "wrong", "mutations read"), 0)
    failures = foreign(pathlib.Path(scripts[0]).resolve(), counts) if scripts else (
        generated(counts) + hostile())
    for failure in failures[:20]:
        print(failure, file=sys.stderr)
    print(", ".join(f"{count} {name}" for name, count in counts.items()))
    sys.exit(bool(failures))


main()
