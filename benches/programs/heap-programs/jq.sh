# jq groups 30,000 objects in memory.
. "$(dirname "$0")/common.sh"
prepare() { /usr/bin/python3 -c '
import json, random
random.seed(1)
print(json.dumps([{"id": n, "group": random.randrange(500), "words": ["%x" % random.getrandbits(40) for _ in range(6)]}
                  for n in range(30000)]))' >objects; }
run() { cpu $RUN jq -c 'group_by(.group) | map({g: .[0].group, n: length, w: (map(.words | join("-")) | max)})' objects |
    sha256sum; }
"$1"
