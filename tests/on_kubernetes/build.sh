#!/bin/bash
# Build kube-apiserver once for the tests, from Debian's source package: build.sh [FOLDER].
#
# The result is FOLDER/bin/kube-apiserver; with it there, this does nothing. etcd is Debian's package. As root on Debian the packages
# are installed; elsewhere this says what is missing and exits with 3. It takes about 10 minutes of CPU time and 3 GB of disk, of
# which 120 MB stay.
set -euo pipefail
folder=${1:-${XDG_CACHE_HOME:-$HOME/.cache}/fairlead/kubernetes}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
packages="golang-1.19-go etcd-server golang-github-modern-go-reflect2-dev dpkg-dev openssl"

missing=$(for package in $packages; do dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || echo "$package"; done)
if [ -n "$missing" ]; then
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        echo "the tests on Kubernetes need these packages of Debian 12: $(echo $missing)" >&2
        exit 3
    fi
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
fi
[ -x "$folder/bin/kube-apiserver" ] && exit 0

# The source package, with lists of packages of our own: the machine's may not name sources.
build=$folder/build
tree=$build/gopath/src/k8s.io/kubernetes
mkdir -p "$build/lists/partial" "$build/gopath/src/k8s.io" "$folder/bin"
if [ ! -e "$build/unpacked" ]; then
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 2>/dev/null | grep -v security | head -1)
    for suite in bookworm bookworm-security; do
        [ "$suite" = bookworm ] && uri=$mirror || uri=${mirror%/}-security
        printf 'Types: deb-src\nURIs: %s\nSuites: %s\nComponents: main\nSigned-By: %s\n\n' \
            "$uri" "$suite" /usr/share/keyrings/debian-archive-keyring.gpg
    done > "$build/debian.sources"
    sources=(-o "Dir::Etc::sourcelist=$build/debian.sources" -o Dir::Etc::sourceparts=/dev/null -o "Dir::State::lists=$build/lists" -o APT::Sandbox::User=root)
    apt-get "${sources[@]}" update -qq
    rm -rf "$tree" "$build/package" && mkdir "$build/package"
    (cd "$build/package" && apt-get "${sources[@]}" source -qq kubernetes >/dev/null)
    mv "$build/package"/kubernetes-*/ "$tree"
    # The bundled version of this library crashes under Go 1.19.
    rm -rf "$tree/vendor/github.com/modern-go/reflect2"
    cp -r /usr/share/gocode/src/github.com/modern-go/reflect2 "$tree/vendor/github.com/modern-go/"
    touch "$build/unpacked"
fi

export PATH=/usr/lib/go-1.19/bin:$PATH GO111MODULE=off GOPATH=$build/gopath GOCACHE=$build/gocache CGO_ENABLED=0
cd "$tree"
# A generated file that the package does not contain: descriptions of all types.
go build -o "$build/openapi-gen" ./vendor/k8s.io/kube-openapi/cmd/openapi-gen
types=$(grep -rl --include='*.go' '+k8s:openapi-gen=' pkg cmd staging/src vendor/k8s.io 2>/dev/null | xargs -n1 dirname |
    sed -e 's#^staging/src/#vendor/#' -e 's#^#k8s.io/kubernetes/#' | sort -u | paste -sd,)
"$build/openapi-gen" --logtostderr -i "$types" -p k8s.io/kubernetes/pkg/generated/openapi -O zz_generated.openapi \
    -h hack/boilerplate/boilerplate.generatego.txt -r "$build/violations" -o "$build/gopath/src"
go build -ldflags '-s -w' -o "$folder/bin/kube-apiserver.new" ./cmd/kube-apiserver
mv "$folder/bin/kube-apiserver.new" "$folder/bin/kube-apiserver"
cd / && chmod -R u+w "$build" && rm -rf "$build"
