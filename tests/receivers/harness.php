
// Appended to the function of docs/how-to/receive-webhooks.md. `cases`: one case a line, one verdict a line. As the
// script of PHP's own server: 204 to what verifies and 401 to the rest.

/** A secret stands behind "=", one of several behind a colon, anything else as JSON behind "!". */
function secrets_in(string $field): mixed
{
    if (str_starts_with($field, '!') || str_starts_with($field, '=')) {
        $text = base64_decode(substr($field, 1));
        return $field[0] === '=' ? $text : json_decode($text);
    }
    $decode = fn (string $each): string => base64_decode(substr($each, 1));
    return $field === '' ? [] : array_map($decode, explode(',', $field));
}

function verdict(mixed $secrets, array $forms, int $now): string
{
    try {
        $said = array_unique(array_map(fn ($form) => var_export(verify($secrets, ...$form, now: $now), true), $forms));
    } catch (TypeError) {
        return 'refused';
    }
    return count($said) === 1 ? $said[0] : 'not alike';
}

/** What was not refused, although it is no form of headers or of a body. */
function taken(mixed $secrets, array $headers, string $body): array
{
    $wrong = [[$headers], [$headers, null], [$headers, []], [null, $body], ['x: y', $body], [['x: y'], $body], [new stdClass(), $body]];
    foreach ([1, null, []] as $other) {
        $wrong[] = [['HTTP_X_SERVICE_WEBHOOK_TIMESTAMP' => [$other], 'HTTP_X_SERVICE_WEBHOOK_SIGNATURE' => 'v1,'], $body];
    }
    $said = [];
    foreach ($wrong as $form) {
        try {
            $said[] = var_export(verify($secrets, ...$form), true) . ' for ' . json_encode($form);
        } catch (TypeError $error) {
            if (!preg_match('/must (be|have)/', $error->getMessage())) {
                $said[] = $error->getMessage();
            }
        }
    }
    return $said;
}

function cases(): void
{
    while (($line = fgets(STDIN)) !== false) {
        [$now, $secrets, $pairs, $body, $events] = explode("\t", rtrim($line, "\n"));
        [$server, $given, $lists] = [['REQUEST_METHOD' => 'POST', 'argv' => []], [], []];
        foreach ($pairs === '' ? [] : explode(',', $pairs) as $pair) {
            [$name, $value] = array_map(base64_decode(...), explode(':', $pair));
            $key = 'HTTP_' . strtr(strtoupper($name), '-', '_');
            $server[$key] = isset($server[$key]) ? "$server[$key], $value" : $value; // as PHP's servers do
            $given[$name] = $server[$key]; // as getallheaders() does
            $lists[strtolower($name)][] = $value; // as frameworks and PSR-7 do
        }
        $body = base64_decode($body);
        $forms = array_map(fn ($headers) => [$headers, $body], [$server, $given, $lists]);
        foreach (json_decode(base64_decode($events), true) as $event) {
            $forms[] = [$event];
        }
        $said = verdict(secrets_in($secrets), $forms, (int) $now);
        $wrong = $said === 'refused' ? [] : taken(secrets_in($secrets), $server, $body);
        echo $wrong[0] ?? $said, "\n";
    }
}

if (PHP_SAPI === 'cli') {
    cases();
} else {
    $now = time() + (str_starts_with($_SERVER['REQUEST_URI'], '/late') ? 302 : 0);
    $known = verify(secrets_in(getenv('SECRETS')), $_SERVER, file_get_contents('php://input'), $now);
    http_response_code($known ? 204 : 401);
}
