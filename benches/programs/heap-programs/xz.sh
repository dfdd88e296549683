# xz with its usual dictionary on 2 MB of text.
. "$(dirname "$0")/common.sh"
prepare() { text 400000 >text; }
run() { cpu $RUN xz -6 -T1 -c text | sha256sum; }
"$1"
