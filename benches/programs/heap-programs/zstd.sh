# zstd -15 --long on 1 MB of text.
. "$(dirname "$0")/common.sh"
prepare() { text 175000 >text; }
run() { cpu $RUN zstd -q -15 --long=27 -c text | sha256sum; }
"$1"
