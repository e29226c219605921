# Installs bitnet @VERSION@ for this user, without administrator rights.
#
# Downloads the archive for Windows, verifies its SHA-256 checksum, which this script contains, and copies the program to
# a folder of the user. $env:BITNET_URL names another place with the same archive.
param([string]$Folder = (Join-Path $env:LOCALAPPDATA 'Programs\bitnet'))
$ErrorActionPreference = 'Stop'

$url = if ($env:BITNET_URL) { $env:BITNET_URL } else { '@URL@' }
$name = 'bitnet-@VERSION@-x86_64-windows'
$place = Join-Path ([IO.Path]::GetTempPath()) ([Guid]::NewGuid())
New-Item -ItemType Directory -Path $place | Out-Null
try {
    $archive = Join-Path $place "$name.zip"
    Invoke-WebRequest -UseBasicParsing -Uri "$url/$name.zip" -OutFile $archive
    $actual = (Get-FileHash -Algorithm SHA256 -Path $archive).Hash.ToLowerInvariant()
    $expected = '@SHA256 x86_64-windows.zip@'
    if ($actual -ne $expected) { throw "the archive has checksum $actual instead of $expected; nothing is installed" }
    Expand-Archive -Path $archive -DestinationPath $place
    New-Item -ItemType Directory -Force -Path $Folder | Out-Null
    foreach ($file in 'bitnet.exe', 'bitnet.cubins') {
        $from = Join-Path (Join-Path $place $name) $file
        if (Test-Path $from) { Copy-Item -Force $from $Folder }
    }
} finally {
    Remove-Item -Recurse -Force $place
}
$path = [Environment]::GetEnvironmentVariable('Path', 'User')
if (($path -split ';') -notcontains $Folder) {
    [Environment]::SetEnvironmentVariable('Path', "$path;$Folder", 'User')
    Write-Output "added $Folder to the user's PATH: open a new window"
}
Write-Output "bitnet @VERSION@ is in $Folder"
