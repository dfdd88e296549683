#!/bin/sh
# Prints the path of a package with the files and the maintainer's scripts of an installed one, and a later version:
# repack PACKAGE [FILE]. A word is appended to FILE, one of its files.
set -eu
package=$1
tree=$(mktemp -d)
mkdir "$tree/DEBIAN"
dpkg-query -L "$package" | while read -r file; do
    # Some files were left out of the installation, and /lib is a link that belongs to no package.
    if [ ! -d "$file" ] && { [ -L "$file" ] || [ -f "$file" ]; }; then echo "${file#/}"; fi
done >"$tree.files"
tar -C / --no-recursion -c -T "$tree.files" | tar -C "$tree" -x
if [ $# -gt 1 ]; then echo upgraded >>"$tree/$2"; fi
for part in conffiles preinst postinst prerm postrm triggers templates config; do
    if [ -e "/var/lib/dpkg/info/$package.$part" ]; then cp -p "/var/lib/dpkg/info/$package.$part" "$tree/DEBIAN/$part"; fi
done
# A separate file lists the conffiles.
dpkg-query -s "$package" | awk '
    /^[^ ]/ { left_out = /^(Status|Conffiles):/ }
    /^Version:/ { $0 = $0 "+upgraded" }
    /^Depends:/ { $0 = with_versions($0) }
    !left_out
    function with_versions(line) {
        gsub(/ \(= [^)]*/, "&+upgraded", line)
        return line
    }' >"$tree/DEBIAN/control"
dpkg-deb -Znone -b "$tree" "/tmp/$package.deb" >&2
rm -r "$tree" "$tree.files"
echo "/tmp/$package.deb"
