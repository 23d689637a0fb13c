
// Appended to the function of docs/how-to/receive-webhooks.md. `cases`: one case a line, one verdict a line. As the
// script of PHP's own server: 204 to what verifies and 401 to the rest.

/** An encoded secret may be empty, so each stands behind a colon. */
function secrets_in(string $field): array
{
    $decode = fn (string $each): string => base64_decode(substr($each, 1));
    return $field === '' ? [] : array_map($decode, explode(',', $field));
}

function cases(): void
{
    while (($line = fgets(STDIN)) !== false) {
        [$now, $secrets, $pairs, $body] = explode("\t", rtrim($line, "\n"));
        $server = [];
        foreach ($pairs === '' ? [] : explode(',', $pairs) as $pair) {
            [$name, $value] = array_map(base64_decode(...), explode(':', $pair));
            $key = 'HTTP_' . strtr(strtoupper($name), '-', '_');
            $server[$key] = isset($server[$key]) ? "$server[$key], $value" : $value; // as PHP's servers do
        }
        $verdict = verify(secrets_in($secrets), $server, base64_decode($body), (int) $now);
        echo $verdict ? "true\n" : "false\n";
    }
}

if (PHP_SAPI === 'cli') {
    cases();
} else {
    $now = time() + (str_starts_with($_SERVER['REQUEST_URI'], '/late') ? 302 : 0);
    $known = verify(secrets_in(getenv('SECRETS')), $_SERVER, file_get_contents('php://input'), $now);
    http_response_code($known ? 204 : 401);
}
