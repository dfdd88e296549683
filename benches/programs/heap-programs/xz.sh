# xz with its usual dictionary on 600 kB of text.
. "$(dirname "$0")/common.sh"
prepare() { text 110000 >text; }
run() { cpu $RUN xz -6 -T1 -c text | sha256sum; }
"$1"
