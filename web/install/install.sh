#!/bin/sh
# Installs Farhand's agent on this Linux host, registers the host, and starts the agent.
# On a host that is registered, it upgrades the agent. See --help.
set -eu

service=@SERVICE@
version=@VERSION@
# The Ed25519 key of releases, in base64. Empty: the service was built from source, unsigned.
release_key=@RELEASE_KEY@
policy=/etc/farhand/policy.toml

usage() {
    cat <<END
Installs or upgrades Farhand's agent, for $service

  curl -fsSL $service/install.sh | FARHAND_REGISTRATION_TOKEN=<key> sh
  curl -fsSL $service/install.sh | FARHAND_SERVER=<id> FARHAND_KEY=<key> sh
  curl -fsSL $service/install.sh | sh -s -- --token-file FILE [OPTION ...]

With sudo, keep the variables: sudo --preserve-env=FARHAND_REGISTRATION_TOKEN,FARHAND_POLICY sh

FARHAND_POLICY chooses what the service may run here. It is written to $policy,
unless that file exists:
  open                 everything, as every account (the default)
  accounts             everything, but nothing as root
  argv                 only the commands that you list in the file

  --token-file FILE    a file that contains only the key of a registration token
  --token KEY          the key itself; other accounts of this host can see it while this runs
  --name NAME          the server's name; default: the host name
  --label KEY=VALUE    a label of the server; the token must allow its key; can be repeated
  --user               install for this account only, without root
  --foreground         run the agent in this process, without systemd (for containers)
  --allow-plain-http   allow http:// to another host; anyone on the network path can then become root
END
}

say() { printf 'farhand: %s\n' "$1"; }
warn() { printf 'farhand: warning: %s\n' "$1" >&2; }
die() {
    printf 'farhand: %s\n' "$1" >&2
    exit 1
}

has() { command -v "$1" >/dev/null 2>&1; }

# Downloads a file of the service. curl and wget use the proxies of the environment.
fetch() {
    if has curl; then
        curl -fsS --connect-timeout 30 -o "$2" "$service$1" 2>"$work/error"
    elif has wget; then
        # BusyBox' wget does not have this option.
        if wget --version 2>/dev/null | grep -q GNU; then
            wget --max-redirect=0 -O "$2" "$service$1" 2>"$work/error"
        else
            wget -O "$2" "$service$1" 2>"$work/error"
        fi
    else
        die "this needs curl or wget"
    fi
}

download() {
    fetch "$1" "$2" && return
    if grep -Eq ' 404([^0-9]|$)' "$work/error"; then
        die "the service has no $1"
    fi
    die "cannot download $service$1: $(grep -v '^$' "$work/error" | tail -n 1)"
}

sha256_of() {
    if has sha256sum; then
        sha256sum <"$1" | cut -d ' ' -f 1
    elif has openssl; then
        openssl dgst -sha256 -r <"$1" | cut -d ' ' -f 1
    else
        die "this needs sha256sum or openssl"
    fi
}

# Checks the signature of the agent with the SHA-256 $sha256. Without a release key, agents have no
# signatures.
check_signature() {
    [ -n "$release_key" ] || return 0
    if ! has openssl || ! openssl pkeyutl -help 2>&1 | grep -q -e -rawin; then
        die "the agent is signed, and this host cannot check it: this needs OpenSSL 3.0 or later; nothing was installed"
    fi
    download "$file.sig" "$work/signature"
    # The first 16 characters are the header of every Ed25519 key.
    printf -- '-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEA%s\n-----END PUBLIC KEY-----\n' \
        "$release_key" >"$work/key"
    printf 'farhand-agent %s %s %s\n' "$version" "$arch" "$sha256" >"$work/signed"
    if ! openssl base64 -d -A -in "$work/signature" -out "$work/signature.bin" 2>/dev/null ||
        ! openssl pkeyutl -verify -pubin -inkey "$work/key" -rawin -in "$work/signed" \
            -sigfile "$work/signature.bin" >/dev/null 2>&1; then
        die "the signature of $service$file is wrong; nothing was installed"
    fi
}

# Downloads and checks the agent, unless the installed one is the same. Sets $agent.
get_agent() {
    file=/agent/$version/farhand-agent-$arch
    download "$file.sha256" "$work/sha256"
    sha256=$(cut -d ' ' -f 1 <"$work/sha256")
    if [ -f "$installed" ] && [ "$(sha256_of "$installed")" = "$sha256" ]; then
        agent=$installed
        return
    fi
    say "downloading the agent $version for $arch"
    agent=$work/farhand-agent
    download "$file" "$agent"
    if [ "$(sha256_of "$agent")" != "$sha256" ]; then
        die "the checksum of $service$file is wrong; nothing was installed"
    fi
    check_signature
    chmod 755 "$agent"
    "$agent" --version </dev/null >/dev/null 2>"$work/error" || die \
        "the agent does not start in $work: $(head -n 1 "$work/error"); if programs may not run there, set TMPDIR"
}

# Writes the agent's config file.
connect() {
    if [ -n "${FARHAND_KEY:-}" ]; then
        # Not an argument: every account of the host can see arguments.
        FARHAND_AGENT_KEY=$FARHAND_KEY "$agent" configure --url "$service" --id "$FARHAND_SERVER" \
            --config "$config" $plain_http </dev/null
    elif [ -f "$config" ]; then
        say "this host is registered, with the file $config"
    else
        # $labels is split into words, which have no characters with a meaning for the shell.
        # shellcheck disable=SC2086
        set -- register --url "$service" --config "$config" $labels $plain_http
        [ -z "$name" ] || set -- "$@" --name "$name"
        [ -z "$token_file" ] || set -- "$@" --token-file "$token_file"
        registered=$("$agent" "$@" </dev/null) || exit 1
        # This script does the next step, which the agent suggests.
        printf '%s\n' "$registered" | sed '/^to run it as a service/d'
    fi || exit 1
}

has_systemd() {
    if [ -n "$own_account" ]; then
        systemctl --user show-environment >/dev/null 2>&1
    else
        [ -d /run/systemd/system ]
    fi
}

is_active() { systemctl ${own_account:+--user} is-active --quiet farhand-agent.service; }

main() {
    name='' token_file='' labels='' own_account='' foreground='' plain_http=''
    while [ $# -gt 0 ]; do
        case $1 in
        --user) own_account=--own-account ;;
        --foreground) foreground=1 ;;
        --allow-plain-http) plain_http=--allow-plain-http ;;
        -h | --help)
            usage
            exit
            ;;
        --token-file | --token | --name | --label)
            [ $# -gt 1 ] || die "$1 needs a value"
            case $1 in
            --token-file) token_file=$2 ;;
            --name) name=$2 ;;
            --token)
                warn "--token: other accounts of this host can see the token; use --token-file"
                FARHAND_REGISTRATION_TOKEN=$2
                export FARHAND_REGISTRATION_TOKEN
                ;;
            --label)
                case $2 in
                *[!A-Za-z0-9._/=-]*) die "--label $2: a label has the form key=value" ;;
                esac
                labels="$labels --label $2"
                ;;
            esac
            shift
            ;;
        *) die "unknown option $1; --help lists the options" ;;
        esac
        shift
    done

    case ${FARHAND_POLICY:-} in
    '' | open | accounts | argv) ;;
    *) die "FARHAND_POLICY: $FARHAND_POLICY is not open, accounts or argv" ;;
    esac
    if [ -n "$own_account" ] && [ -n "${FARHAND_POLICY:-}" ]; then
        die "FARHAND_POLICY: only root can write $policy, so omit --user"
    fi
    [ "$(uname -s)" = Linux ] || die "this is for Linux, not for $(uname -s)"
    case $(uname -m) in
    x86_64 | amd64) arch=x86_64 ;;
    aarch64 | arm64) arch=aarch64 ;;
    *) die "there is no agent for the architecture $(uname -m)" ;;
    esac
    if [ -n "$own_account" ]; then
        installed=${HOME:?}/.local/bin/farhand-agent
        config=$HOME/.config/farhand/agent.toml
    else
        [ "$(id -u)" = 0 ] || die "this needs root: use sudo --preserve-env (see --help), or --user for your account only"
        installed=/usr/local/bin/farhand-agent
        config=/etc/farhand/agent.toml
    fi
    case ${FARHAND_SERVER:+id}${FARHAND_KEY:+key} in
    id | key) die "FARHAND_SERVER and FARHAND_KEY belong together" ;;
    esac
    if [ ! -f "$config" ] && [ -z "${FARHAND_KEY:-}${FARHAND_REGISTRATION_TOKEN:-}$token_file" ]; then
        die "this host is not registered: set FARHAND_REGISTRATION_TOKEN, or FARHAND_SERVER and FARHAND_KEY"
    fi
    if [ -n "$token_file" ] && [ ! -r "$token_file" ]; then
        die "--token-file: $token_file cannot be read"
    fi

    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    trap 'exit 1' HUP INT TERM
    get_agent
    # A chosen policy is still to be written.
    if [ -n "${FARHAND_POLICY:-}" ] && [ ! -e "$policy" ]; then new_policy=1; else new_policy=''; fi
    if [ "$agent" = "$installed" ] && [ -f "$config" ] && [ -z "${FARHAND_KEY:-}$foreground$new_policy" ] &&
        has_systemd && is_active; then
        say "the agent $version already runs"
        exit
    fi
    connect
    if [ -z "$foreground" ] && has_systemd; then
        "$agent" install --config "$config" $own_account </dev/null || exit 1
    else
        "$agent" install --config "$config" $own_account --no-start </dev/null || exit 1
    fi
    say "the agent $version is installed"
    [ -n "$foreground" ] || exit 0
    rm -rf "$work"
    unset FARHAND_KEY FARHAND_REGISTRATION_TOKEN
    exec "$installed" run --config "$config"
}

# The braces: a script that was cut off anywhere does nothing.
{ main "$@"; }
