#!/usr/bin/env bash
# Asks a running server by its own description, with schemathesis from PyPI: no 5xx, no answer or status that is not
# described, nothing accepted that the description forbids.
#
#     bitnet serve demo --log off &
#     pip install schemathesis && ./check_description.sh http://127.0.0.1:8080 500
#
# That everything described is accepted cannot be asked: ids depend on the vocabulary, lengths on the context, and a
# deadline of a millisecond is valid and hopeless. Hundreds of choices that fill the context take a while.
set -euo pipefail
base=$1 examples=${2:-100}
# It leaves files of its own wherever it runs.
cd "$(mktemp -d)"
# HTTP lets clients send headers that nobody described, and a body may be too long before it is wrong.
cat >schemathesis.toml <<'END'
[generation]
allow-extra-parameters = false

[checks.negative_data_rejection]
expected-statuses = ["400", "401", "403", "404", "405", "406", "409", "413", "415", "422", "428", "429", "5xx"]
END
schemathesis run "$base/openapi.json" --max-examples "$examples" --request-timeout 120 \
    --exclude-checks positive_data_acceptance
