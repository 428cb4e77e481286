#!/usr/bin/env bash
# The user-space NVMe driver against QEMU's NVMe disks, behind QEMU's IOMMU, in a virtual machine without acceleration:
# scripts/nvme-qemu.sh. No root, no disk of this machine, no network but for a kernel package that is fetched once.
# Exit status: 0 all cases passed, 1 not, 77 something that it needs is missing (said in one line).
# OUTCROP_NVME_KERNEL: a folder with boot/vmlinuz-* and lib/modules instead of Debian's package.
# OUTCROP_NVME_BUILD: a folder with nvme_check (cmake -DOUTCROP_NVME=ON) instead of building it.
# OUTCROP_NVME_READS: verified reads (default 20000). OUTCROP_NVME_LIMIT_S: of the virtual machine (default 300).
source "$(dirname "$0")/common.sh"
PATH=$PWD/$venv/bin:$PATH:/usr/sbin:/sbin
work=$PWD/build/nvme-qemu
reads=${OUTCROP_NVME_READS:-20000}
limit=${OUTCROP_NVME_LIMIT_S:-300}
bad_block=20000  # of the disk with an injected error

skip() { say "NVMe driver in QEMU left out: $*"; exit 77; }

need() {  # need COMMAND PACKAGE
  command -v "$1" >/dev/null || skip "$1 is missing (sudo apt-get install --no-install-recommends $2)"
}

find_tools() {
  [ "$(uname -m)" = x86_64 ] || skip "it is for x86_64"
  need qemu-system-x86_64 qemu-system-x86
  need busybox busybox-static
  ! ldd "$(command -v busybox)" >/dev/null 2>&1 || skip "busybox is not static (sudo apt-get install busybox-static)"
  need cpio cpio
  need mkfs.ext4 e2fsprogs
  need sfdisk fdisk
}

find_modules() {
  find "$1/lib/modules" '(' -name 'irqbypass.ko*' -o -name 'vfio.ko*' -o -name 'vfio_virqfd.ko*' \
    -o -name 'vfio_iommu_type1.ko*' -o -name 'vfio-pci-core.ko*' -o -name 'vfio-pci.ko*' ')'
}

# Debian's kernel for clouds: NVMe built in, VFIO and the Intel IOMMU as modules or built in.
find_kernel() {
  kernel=${OUTCROP_NVME_KERNEL:-$work/kernel}
  if [ ! -d "$kernel/lib/modules" ] && [ -z "${OUTCROP_NVME_KERNEL:-}" ]; then
    need apt-get apt
    need dpkg-deb dpkg
    local package
    package=$(apt-cache depends linux-image-cloud-amd64 2>/dev/null | sed -n 's/.*Depends: //p' | head -n 1)
    [ -n "$package" ] || skip "no package linux-image-cloud-amd64 here; name a kernel: OUTCROP_NVME_KERNEL"
    say "fetching $package (27 MB, once)"
    rm -rf "$work/package" && mkdir -p "$work/package"
    (cd "$work/package" && quietly_here apt-get download "$package") || skip "cannot fetch $package"
    dpkg-deb -x "$work"/package/*.deb "$work/package/tree"
    rm -rf "$kernel" && mkdir -p "$kernel/lib/modules"
    mv "$work/package/tree/boot" "$kernel"
    find_modules "$work/package/tree" | xargs -r mv -t "$kernel/lib/modules"
    rm -r "$work/package"
  fi
  image=$(find "$kernel/boot" -name 'vmlinuz-*' | head -n 1)
  [ -n "$image" ] || skip "no boot/vmlinuz-* in $kernel"
}

quietly_here() { "$@" >apt.log 2>&1; }

find_program() {
  local build=${OUTCROP_NVME_BUILD:-$PWD/build/nvme}
  if [ -z "${OUTCROP_NVME_BUILD:-}" ]; then
    local generator
    generator=$(command -v ninja >/dev/null && echo Ninja || echo 'Unix Makefiles')
    command -v cmake >/dev/null || skip "cmake is missing"
    quietly nvme-configure cmake -S . -B "$build" -G "$generator" -DOUTCROP_NVME=ON -DOUTCROP_PYTHON=OFF
    quietly nvme-build cmake --build "$build" --parallel "$jobs" --target nvme_check
  fi
  check=$build/nvme_check
}

make_disks() {
  disks=$work/disks
  local name mib
  rm -rf "$disks" && mkdir -p "$disks"
  while read -r name mib; do
    quietly "nvme-$name" "$check" image "$disks/$name" $((mib << 20))
  done <<<$'data 64\nmedia 32\nbound 4\nrenewed 4'
  for name in ext4 gpt blank strange; do truncate -s 8M "$disks/$name"; done
  quietly nvme-ext4 mkfs.ext4 -q "$disks/ext4"
  printf 'label: gpt\nsize=2MiB\n' | quietly nvme-gpt sfdisk "$disks/gpt"
  # A header over a disk whose partition table's backup is still at its end; and a disk with one byte of who knows what.
  truncate -s 8M "$disks/renewed"
  dd if="$disks/gpt" of="$disks/renewed" bs=512 skip=$((16384 - 33)) seek=$((16384 - 33)) conv=notrunc status=none
  printf x | dd of="$disks/strange" bs=1 seek=700000 conv=notrunc status=none
}

# Cases in order; each prints "ok NAME: ..." or "FAILED NAME: ...". Addresses are those of -device below.
make_init() {
  cat <<EOF
#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc; mount -t sysfs sysfs /sys; mount -t devtmpfs dev /dev
for m in irqbypass vfio vfio_virqfd vfio_iommu_type1 vfio-pci-core vfio-pci; do [ ! -f /mod/\$m.ko ] || insmod /mod/\$m.ko; done
at() { echo 0000:00:\$1.0; }
bind() {
  a=/sys/bus/pci/devices/\$(at \$1)
  [ ! -e \$a/driver ] || at \$1 >\$a/driver/unbind
  echo vfio-pci >\$a/driver_override
  at \$1 >/sys/bus/pci/drivers_probe
}
nvme_check refused \$(at 15) "the driver 'nvme' has it as /dev/nvme"
for d in 10 11 12 13 14 16 17; do bind \$d; done
nvme_check identify \$(at 10) data
nvme_check queues \$(at 10)
nvme_check reads \$(at 10) $reads
nvme_check rows \$(at 10) 20000
nvme_check media \$(at 11) $bad_block
nvme_check refused \$(at 12) "ext2, ext3 or ext4 file system"
nvme_check refused \$(at 13) "GPT partition table"
nvme_check blank \$(at 14)
nvme_check refused \$(at 16) "GPT partition table (backup)"
nvme_check refused \$(at 17) "unknown content at byte 700000"
nvme_check identify \$(at 10) data
echo "up \$(cut -d' ' -f1 /proc/uptime) s"
poweroff -f
EOF
}
cases=12

make_initrd() {
  local root=$work/root module
  rm -rf "$root" && mkdir -p "$root"/{bin,mod,proc,sys,dev}
  cp "$(command -v busybox)" "$root/bin/busybox"
  cp "$check" "$root/bin/nvme_check"
  while read -r module; do
    case $module in
      *.xz) xz -dc "$module" >"$root/mod/$(basename "$module" .xz)" ;;
      *) cp "$module" "$root/mod/" ;;
    esac
  done < <(find_modules "$kernel")
  make_init >"$root/init"
  chmod +x "$root/init"
  (cd "$root" && find . | cpio --quiet -o -H newc) >"$work/initrd"
}

run_machine() {
  local arguments=() name slot=10
  for name in data media ext4 gpt blank bound renewed strange; do
    local node=file-$name
    arguments+=(-blockdev "driver=file,node-name=file-$name,filename=$disks/$name,aio=threads,cache.no-flush=on")
    if [ $name = media ]; then
      arguments+=(-blockdev "driver=blkdebug,node-name=faulty,image=file-media,inject-error.0.event=none,inject-error.0.iotype=read,inject-error.0.errno=5,inject-error.0.sector=$bad_block,inject-error.0.once=off,inject-error.0.immediately=off")
      node=faulty
    fi
    arguments+=(-device "nvme,serial=$name,drive=$node,addr=0x$slot")
    slot=$((slot + 1))
  done
  timeout "$limit" qemu-system-x86_64 -accel tcg -machine q35 -cpu max -m 512 -smp 1 -display none -monitor none \
    -serial "file:$work/console" -no-reboot -nic none -device intel-iommu "${arguments[@]}" \
    -kernel "$image" -initrd "$work/initrd" -append "console=ttyS0 intel_iommu=on quiet panic=-1 loglevel=3 no_timer_check" \
    2>"$work/qemu.log"  # of injected errors, mostly
}

find_tools
mkdir -p "$work"
find_program
find_kernel
make_disks
make_initrd
start=$SECONDS status=0
rm -f "$work/console"
run_machine || status=$?
tr -d '\r' <"$work/console" | grep -E '^(ok|FAILED|up) ' || true
passed=$(tr -d '\r' <"$work/console" | grep -c '^ok ' || true)
if [ $status != 0 ] || [ "$passed" != $cases ]; then
  [ $status != 124 ] || say "stopped after $limit s"
  tail -n 20 "$work/console" "$work/qemu.log"
  die "NVMe driver in QEMU: $passed of $cases cases passed (QEMU's exit status $status)"
fi
say "NVMe driver in QEMU: $passed of $cases cases passed, $((SECONDS - start)) s"
