// Runs a command on a server, prints its output, and ends with its exit code.
//
//	FARHAND_URL=https://acme.eu1.example.com FARHAND_TOKEN=... go run . web-1 'uptime'
//
// Without FARHAND_TOKEN it logs in with FARHAND_USERNAME and FARHAND_PASSWORD.
// FARHAND_ACCOUNT is the account on the host.
// FARHAND_WAIT is how many seconds one request waits for the end of the command (1 to 60, default 30).
// Exit code 125: the command could not be run, or did not end with an exit code.
package main

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"
)

const couldNotRun = 125

// Command has the fields of a command that this program uses.
type Command struct {
	ID        string  `json:"id"`
	Result    *string `json:"result"`
	ExitCode  *int    `json:"exit_code"`
	HandledAt *string `json:"handled_at"`
	Status    struct {
		Message string `json:"message"`
	} `json:"status"`
}

// Client calls the API of one workspace.
type Client struct {
	url   string
	token string
	wait  string
	http  http.Client
}

// call sends a request and decodes the body of a success. Everything else is an error with the messages of the service.
func (client *Client) call(method, path string, body any, headers map[string]string, into any) error {
	encoded, err := json.Marshal(body)
	if err != nil {
		return err
	}
	var sent io.Reader
	if body != nil {
		sent = bytes.NewReader(encoded)
	}
	request, err := http.NewRequest(method, client.url+path, sent)
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	if client.token != "" {
		request.Header.Set("Authorization", fmt.Sprintf("token=%q", client.token))
	}
	for name, value := range headers {
		request.Header.Set(name, value)
	}
	response, err := client.http.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode >= 300 {
		return fmt.Errorf("%d: %s", response.StatusCode, message(answer))
	}
	return json.Unmarshal(answer, into)
}

// message reads an error response, which has a list of messages for each bad field, or `detail`.
func message(answer []byte) string {
	var members map[string]any
	if json.Unmarshal(answer, &members) != nil {
		return string(answer)
	}
	var fields []string
	for name, value := range members {
		if texts, isList := value.([]any); isList {
			fields = append(fields, fmt.Sprintf("%s: %v", name, texts))
		}
	}
	if len(fields) == 0 {
		return fmt.Sprint(members["detail"])
	}
	return strings.Join(fields, "; ")
}

func (client *Client) logIn(username, password string) error {
	credentials := map[string]string{"username": username, "password": password}
	var login struct {
		Token string `json:"token"`
	}
	err := client.call("POST", "/api/auth/login/", credentials, nil, &login)
	client.token = login.Token
	return err
}

// run runs a command and waits until it has ended.
func (client *Client) run(server, line, account string) (command Command, err error) {
	body := map[string]string{"server": server, "line": line}
	if account != "" {
		body["username"] = account
	}
	key := make([]byte, 16)
	if _, err = rand.Read(key); err != nil {
		return
	}
	headers := map[string]string{
		"Prefer": "wait=" + client.wait,
		// If the answer is lost, a second request with the same key does not run the command again.
		"Idempotency-Key": hex.EncodeToString(key),
	}
	err = client.call("POST", "/api/events/commands/", body, headers, &command)
	for err == nil && command.HandledAt == nil {
		path := fmt.Sprintf("/api/events/commands/%s/?wait=%s", command.ID, client.wait)
		err = client.call("GET", path, nil, nil, &command)
	}
	return
}

func fail(reason any) {
	fmt.Fprintln(os.Stderr, reason)
	os.Exit(couldNotRun)
}

func main() {
	if len(os.Args) != 3 {
		fail("usage: run SERVER LINE")
	}
	client := Client{
		url:   os.Getenv("FARHAND_URL"),
		token: os.Getenv("FARHAND_TOKEN"),
		wait:  os.Getenv("FARHAND_WAIT"),
		http:  http.Client{Timeout: 90 * time.Second},
	}
	if client.wait == "" {
		client.wait = "30"
	}
	if client.token == "" {
		if err := client.logIn(os.Getenv("FARHAND_USERNAME"), os.Getenv("FARHAND_PASSWORD")); err != nil {
			fail(err)
		}
	}
	command, err := client.run(os.Args[1], os.Args[2], os.Getenv("FARHAND_ACCOUNT"))
	if err != nil {
		fail(err)
	}
	if command.Result != nil {
		fmt.Print(*command.Result)
	}
	if command.ExitCode == nil {
		fail(command.Status.Message)
	}
	fmt.Fprintln(os.Stderr, "exit code", *command.ExitCode)
	os.Exit(*command.ExitCode)
}
